"""Numbers instead of text: POST to /rerank, /score, /classify and /pooling, in the form of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import orjson

from loadtests.emulator.answers.base import Answer

LABELS = ("LABEL_0", "LABEL_1")
DIMENSIONS = 16


class PooledAnswer(Answer):
    """Never streamed. The numbers are meaningless; they depend only on the position and the length of the prompt."""

    prefix = "pool"

    def body(self) -> bytes:
        head = {"id": self.id, "object": "list", "created": self.created, "model": self.request.model}
        entries = [self.entry(index) for index in range(len(self.request.choices))]
        return orjson.dumps(head | {"data": entries, "usage": self.usage() | {"prompt_tokens_details": None}})

    def entry(self, index: int) -> dict[str, object]:
        """The answer to one prompt."""
        return {"index": index, "object": "pooling", "data": self.numbers(index, DIMENSIONS)}

    def numbers(self, index: int, count: int) -> list[float]:
        """`count` numbers between 0 and 1 for one prompt."""
        draw = Random(index * 65537 + self.request.choices[index].prompt_tokens)
        return [draw.random() for _ in range(count)]

    def voice(self, index: int) -> Callable[[], None]:
        raise NotImplementedError("numbers are not streamed")

    def closing(self) -> None:
        raise NotImplementedError("numbers are not streamed")


class ScoreAnswer(PooledAnswer):
    """A score for each pair."""

    prefix = "embd"

    def entry(self, index: int) -> dict[str, object]:
        return {"index": index, "object": "score", "score": self.numbers(index, 1)[0]}


class ClassifyAnswer(PooledAnswer):
    """The likelier of two classes for each prompt."""

    prefix = "classify"

    def entry(self, index: int) -> dict[str, object]:
        first = self.numbers(index, 1)[0]
        label = LABELS[0] if first >= 0.5 else LABELS[1]
        return {"index": index, "label": label, "probs": [first, 1.0 - first], "num_classes": len(LABELS)}


class RerankAnswer(PooledAnswer):
    """Documents, the most relevant first."""

    prefix = "rerank"

    def body(self) -> bytes:
        documents = self.request.fields["documents"]
        assert isinstance(documents, list)
        found = [
            {"index": index, "document": _document(document), "relevance_score": self.numbers(index, 1)[0]}
            for index, document in enumerate(documents)
        ]
        found.sort(key=lambda result: -float(str(result["relevance_score"])))
        top = self.request.fields.get("top_n")
        if isinstance(top, int) and top > 0:
            found = found[:top]
        tokens = self.request.prompt_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return orjson.dumps({"id": self.id, "model": self.request.model, "usage": usage, "results": found})


def _document(given: object) -> dict[str, object]:
    is_text = isinstance(given, str)
    return {"text": given if is_text else None, "multi_modal": None if is_text else given}
