"""POST /v1/audio/transcriptions and /translations: text, as JSON, bare or in chunks."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from loadtests.emulator.answers.base import DONE, Answer, data
from loadtests.emulator.audio import TOKENS_PER_SECOND

KIND = "transcription.chunk"


class TranscribedAnswer(Answer):
    """As in vLLM 0.32, usage is in seconds in a whole answer, and in tokens in a stream, on request."""

    prefix = "trsc"

    def body(self) -> bytes:
        said = self.request.choices[0].text().strip()
        if self.request.fields.get("response_format", "json") == "text":
            return said.encode()
        seconds = self.request.prompt_tokens // TOKENS_PER_SECOND
        return orjson.dumps({"text": said, "usage": {"type": "duration", "seconds": seconds}})

    def voice(self, index: int) -> Callable[[], None]:
        choice = self.request.choices[index]
        said = 0

        def speak() -> None:
            nonlocal said
            piece = choice.pieces[said].decode()
            said += 1
            reason = choice.finish_reason if said == choice.output_tokens else None
            self.write(data(self._head() | {"choices": [{"delta": {"content": piece}, "finish_reason": reason}]}))

        return speak

    def closing(self) -> None:
        if self.request.include_usage:
            self.write(data(self._head() | {"choices": [], "usage": self.usage()}))
        self.write(DONE)

    def _head(self) -> dict[str, object]:
        return {"id": self.id, "object": KIND, "created": self.created, "model": self.request.model}
