"""What every dialect's answer has in common: an id, a voice per choice, a whole body or a stream of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import orjson

from loadtests.emulator.asks import Ask, Choice

FINGERPRINT = "vllm-0.32.0-emulated"
Write = Callable[[bytes], None]


def framed(event: bytes) -> bytes:
    """One SSE event as one chunk of HTTP, as uvicorn sends it."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def data(value: object) -> bytes:
    """An unnamed event, framed."""
    return framed(b"data: %b\n\n" % orjson.dumps(value))


def named(value: dict[str, object]) -> bytes:
    """An event whose name is its type, framed."""
    return framed(b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), orjson.dumps(value)))


DONE = framed(b"data: [DONE]\n\n")


class Answer(ABC):
    """One request's answer. `write` takes one framed event per call."""

    prefix = ""

    def __init__(self, ask: Ask, number: int, created: int, write: Write) -> None:
        self.ask = ask
        self.id = f"{self.prefix}-{number:016x}"
        self.created = created
        self.write = write

    @abstractmethod
    def body(self) -> bytes:
        """The whole answer, not streamed."""

    def opening(self) -> None:
        """What a stream says before the engine has said anything."""
        return

    @abstractmethod
    def voice(self, index: int) -> Callable[[], None]:
        """A function that writes the next token of choice `index`, called once per token."""

    @abstractmethod
    def closing(self) -> None:
        """What a stream says once every choice is over."""

    @staticmethod
    def failure(message: str) -> list[bytes]:
        """How a stream says that the engine failed: framed events."""
        error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        return [data({"error": error}), DONE]

    def usage(self) -> dict[str, object]:
        """Token counts as chat and completions report them."""
        prompt, output = self.ask.prompt_tokens, self.ask.output_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}

    def running_usage(self, choice: Choice, generated: int) -> dict[str, object]:
        """What `continuous_usage_stats` puts on every chunk."""
        prompt = choice.prompt_tokens
        total = prompt + generated
        return {
            "prompt_tokens": prompt,
            "total_tokens": total,
            "completion_tokens": generated,
            "completion_tokens_details": None,
        }


def logprob(index: int) -> float:
    """A log-probability for the token at `index`: any value will do, but always the same."""
    return -0.1 - (index * 37 % 64) / 16


def alternatives(piece: str, index: int, count: int) -> dict[str, float]:
    """The sampled token and `count` likelier ones: vLLM lists both."""
    return {piece: logprob(index)} | {f" alternative{rank}": -0.05 * (rank + 1) for rank in range(count)}
