"""The parts common to answers of all dialects: an id, a writer of tokens for each choice, a whole body or a stream of
events.
"""

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

    def __init__(self, request: Ask, number: int, created: int, write: Write) -> None:
        self.request = request
        self.id = f"{self.prefix}-{number:016x}"
        self.created = created
        self.write = write
        self.cached_tokens = 0
        """Prompt tokens that the last choice to end found in the prefix cache."""
        self.created_tokens = 0
        """Tokens of the blocks that the last choice to end added to the prefix cache."""

    @abstractmethod
    def body(self) -> bytes:
        """The whole answer, not streamed."""

    def opening(self) -> None:
        """Events of a stream before the engine's first token."""
        return

    @abstractmethod
    def voice(self, index: int) -> Callable[[], None]:
        """A function that writes the next token of choice `index`, called once per token."""

    @abstractmethod
    def closing(self) -> None:
        """Events of a stream after the end of every choice."""

    @staticmethod
    def failure(message: str) -> list[bytes]:
        """Framed events that tell that the engine failed."""
        error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        return [data({"error": error}), DONE]

    def usage(self) -> dict[str, object]:
        """Token counts as chat and completions report them."""
        prompt, output = self.request.prompt_tokens, self.request.output_tokens
        usage: dict[str, object] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
        }
        return usage

    def running_usage(self, choice: Choice, generated: int) -> dict[str, object]:
        """The usage that `continuous_usage_stats` puts on every chunk."""
        prompt = choice.prompt_tokens
        total = prompt + generated
        return {
            "prompt_tokens": prompt,
            "total_tokens": total,
            "completion_tokens": generated,
            "completion_tokens_details": None,
        }


class TokenAnswer(Answer):
    """A chunk per token, usage on request, `[DONE]`: the common form of chat and completions."""

    kind = ""
    """Value of the field `object` of a chunk."""
    start = b""
    """Template of a plain chunk up to its token, to be filled with id, created, model and choice."""
    end = b""
    """Template of a plain chunk after its token."""
    begun = True
    """Whether the events before the first token of any choice were sent."""

    def voice(self, index: int) -> Callable[[], None]:
        choice = self.request.choices[index]
        pieces, last, write, end = choice.pieces, choice.output_tokens - 1, self.write, self.end
        plain = self.request.top_logprobs is None and not self.request.continuous_usage
        start = self.start % (self.id.encode(), self.created, orjson.dumps(self.request.model)[1:-1], index)
        size = len(start) + len(end) - 2
        said = 0

        def speak() -> None:
            nonlocal said
            if not self.begun:
                self.begin()
            if plain and said != last:
                piece = pieces[said]
                write(b"%x\r\n%b%b%b" % (size + len(piece), start, piece, end))
            else:
                write(self._chunk(index, choice, said))
            said += 1

        return speak

    def begin(self) -> None:
        """Send the events before the first token of any choice."""
        self.begun = True

    def closing(self) -> None:
        if self.request.include_usage:
            usage = self.usage()
            if self.request.details:
                usage["prompt_tokens_details"] = self.details()
            last = {"choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}
            self.write(data(self.head(self.kind) | last))
        self.write(DONE)

    def details(self) -> dict[str, object]:
        """The details of the prompt tokens, as an engine with --enable-prompt-tokens-details gives them."""
        return {"cached_tokens": self.cached_tokens}

    @abstractmethod
    def part(self, index: int, choice: Choice, said: int) -> dict[str, object]:
        """The token at index `said` of a choice, in the form of a chunk."""

    def head(self, kind: str) -> dict[str, object]:
        """The first fields of every object."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.request.model}

    def whole(self, kind: str, choices: list[dict[str, object]], absent: tuple[str, ...]) -> bytes:
        """An answer in one piece, in which the fields of `absent` are null."""
        details: dict[str, object] | None = None
        if self.request.details:
            details = {"cached_tokens": None, "created_cache_tokens": None, "multimodal_tokens": None} | self.details()
        usage = self.usage() | {"prompt_tokens_details": details, "completion_tokens_details": None}
        return orjson.dumps(
            self.head(kind)
            | {"choices": choices, "service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage}
            | dict.fromkeys((*absent, "kv_transfer_params", "ec_transfer_params", "metrics"))
        )

    def _chunk(self, index: int, choice: Choice, said: int) -> bytes:
        chunk = self.head(self.kind) | {"choices": [self.part(index, choice, said)]}
        if self.request.continuous_usage:
            chunk["usage"] = self.running_usage(choice, said + 1)
        if said + 1 == choice.output_tokens and not self.request.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return data(chunk)


def logprob(index: int) -> float:
    """A log-probability for the token at `index`: an arbitrary value, but always the same."""
    return -0.1 - (index * 37 % 64) / 16


def alternatives(piece: str, index: int, count: int) -> dict[str, float]:
    """The sampled token and `count` likelier ones: vLLM lists both."""
    return {piece: logprob(index)} | {f" alternative{rank}": -0.05 * (rank + 1) for rank in range(count)}
