"""POST /v1/messages: Anthropic's dialect, as vLLM speaks it."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from loadtests.emulator.answers.base import Answer, named
from loadtests.emulator.asks import Choice

CHUNK = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"%b"},"index":0}\n\n'
)


class MessagesAnswer(Answer):
    """Messages: one choice; every event has a name."""

    prefix = "chatcmpl"  # vLLM's own: its messages are chat completions underneath

    def body(self) -> bytes:
        choice = self.request.choices[0]
        content = [{"type": "text", "text": choice.text()}]
        return orjson.dumps(
            {"id": self.id, "type": "message", "role": "assistant", "content": content, "model": self.request.model}
            | self._stop()
            | {"usage": self._usage(choice)}
        )

    def voice(self, index: int) -> Callable[[], None]:
        choice = self.request.choices[index]
        said = 0

        def speak() -> None:
            nonlocal said
            if not said:
                self._start()
            piece = choice.pieces[said]
            said += 1
            if piece:
                self.write(b"%x\r\n%b\r\n" % (len(CHUNK) - 2 + len(piece), CHUNK % piece))

        return speak

    def closing(self) -> None:
        choice = self.request.choices[0]
        self.write(named({"type": "content_block_stop", "index": 0}))
        self.write(
            named(
                {
                    "type": "message_delta",
                    "delta": self._stop() | {"stop_sequence": self.request.choices[0].stop_reason},
                    "usage": self._usage(choice),
                }
            )
        )
        self.write(named({"type": "message_stop"}))

    @staticmethod
    def failure(message: str) -> list[bytes]:
        return [named({"type": "error", "error": {"type": "internal_error", "message": message}})]

    def _start(self) -> None:
        usage = {"input_tokens": self.request.prompt_tokens, "output_tokens": 0}
        message: dict[str, object] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.request.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        self.write(named({"type": "message_start", "message": message}))
        block = {"type": "text", "text": ""}
        self.write(named({"type": "content_block_start", "content_block": block, "index": 0}))

    def _usage(self, choice: Choice) -> dict[str, object]:
        """Anthropic's `input_tokens` leave out the tokens that are read from the cache or written to it."""
        if not self.request.details:
            return {"input_tokens": choice.prompt_tokens, "output_tokens": choice.output_tokens}
        return {
            "input_tokens": choice.prompt_tokens - self.cached_tokens - self.created_tokens,
            "output_tokens": choice.output_tokens,
            "cache_creation_input_tokens": self.created_tokens,
            "cache_read_input_tokens": self.cached_tokens,
        }

    def _stop(self) -> dict[str, object]:
        choice = self.request.choices[0]
        if choice.stop_reason is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
        return {"stop_reason": "max_tokens" if choice.finish_reason == "length" else "end_turn"}
