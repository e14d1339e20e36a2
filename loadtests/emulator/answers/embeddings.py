"""POST /v1/embeddings: a vector per input, as floats or as base64."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from random import Random
from struct import pack

import orjson

from loadtests.emulator.answers.base import Answer

DIMENSIONS = 128


class EmbeddingsAnswer(Answer):
    """Never streamed. The vectors are meaningless; they depend only on the position and the length of the input."""

    prefix = "embd"

    def body(self) -> bytes:
        packed = self.request.fields.get("encoding_format") == "base64"
        entries = []
        for index, choice in enumerate(self.request.choices):
            draw = Random(index * 65537 + choice.prompt_tokens)
            vector = [draw.uniform(-0.1, 0.1) for _ in range(DIMENSIONS)]
            embedding = b64encode(pack(f"<{DIMENSIONS}f", *vector)).decode() if packed else vector
            entries.append({"index": index, "object": "embedding", "embedding": embedding})
        usage = self.usage() | {"prompt_tokens_details": None, "completion_tokens_details": None}
        head = {"id": self.id, "object": "list", "created": self.created, "model": self.request.model}
        return orjson.dumps(head | {"data": entries, "usage": usage})

    def voice(self, index: int) -> Callable[[], None]:
        raise NotImplementedError("embeddings are not streamed")

    def closing(self) -> None:
        raise NotImplementedError("embeddings are not streamed")
