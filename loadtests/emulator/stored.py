"""Responses that a replica keeps, as vLLM does with VLLM_ENABLE_RESPONSES_API_STORE=1. It keeps all of them until it
ends.

A request that continues one is read as if it had sent the conversation itself. Instructions are those of the new
request: earlier system messages are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from loadtests.emulator import errors

PATH = "/v1/responses"
PREVIOUS = "previous_response_id"


class StoredResponses:
    """Conversations by the id of their last response."""

    def __init__(self) -> None:
        self._known: dict[str, list[object]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def whole(self, path: str, body: bytes) -> bytes:
        """`body` with the conversation that it continues. Raises Rejected for an unknown id."""
        if path != PATH or PREVIOUS.encode() not in body:
            return body
        fields = orjson.loads(body)
        previous = fields.get(PREVIOUS)
        if previous is None:
            return body
        if previous not in self._known:
            message = f"Response with id '{previous}' not found."
            raise errors.Rejected(404, message, "invalid_request_error", "response_id")
        return orjson.dumps(fields | {"input": [*self._known[previous], *_items(fields.get("input"))]})

    def keep(self, response_id: str, fields: Mapping[str, object], answer: str) -> None:
        """Keep an answer, unless its request says not to."""
        if fields.get("store") is not False:
            said = [
                item for item in _items(fields["input"]) if not isinstance(item, dict) or item.get("role") != "system"
            ]
            self._known[response_id] = [*said, {"role": "assistant", "content": answer}]

    def clear(self) -> None:
        """Forget all responses, as a restart does."""
        self._known.clear()


def _items(given: object) -> list[object]:
    return given if isinstance(given, list) else [{"role": "user", "content": given}]
