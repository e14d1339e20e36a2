"""Collects the content of a stream of the Responses API. If the gateway cuts the stream, it has to repeat all content
in the closing events, as an engine does.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

_DELTA: Final = re.compile(rb'"delta":\s*"((?:[^"\\]|\\.)*)"')
_MARKS: Final = (
    b"event: response.created\n",
    b"event: response.output_item.added\n",
    b"event: response.output_item.done\n",
    b"event: response.content_part.added\n",
    b"event: response.content_part.done\n",
)


class Draft:
    """The content of a stream so far. Only texts of deltas, and starts and ends of items, are kept."""

    __slots__ = ("_marks", "_texts", "events")

    def __init__(self) -> None:
        self.events = 0
        """Number of events so far. The engine numbers events from 0."""
        self._marks: list[bytes] = []
        self._texts: list[bytes] = []
        """Text of the latest part, in pieces of a JSON string."""

    def add(self, event: bytes) -> None:
        """Add the next event."""
        self.events += 1
        if event.startswith(_MARKS):
            self._marks.append(event)
            self._texts.clear()
        elif event.find(b".delta\n", 0, 64) > 0:
            found = _DELTA.search(event)
            if found is not None:
                self._texts.append(found[1])

    def taken(self) -> tuple[dict[str, Any] | None, list[dict[str, Any]], list[dict[str, Any]]]:
        """(the created response or None, its items so far, the events that end the item under way)."""
        response: dict[str, Any] | None = None
        items: list[dict[str, Any]] = []
        opened = part = None
        for mark in self._marks:
            event = orjson.loads(mark[mark.index(b"data:") + 5 :])
            match event["type"]:
                case "response.created":
                    response = event["response"]
                case "response.output_item.added":
                    opened, part = event, None
                case "response.output_item.done":
                    items.append(event["item"])
                    opened = part = None
                case "response.content_part.added":
                    part = event
                case "response.content_part.done" if opened is not None:
                    opened["item"].setdefault("content", []).append(event["part"])
                    part = None
        return response, items, [] if opened is None else self._closing(opened, part, items)

    def _closing(
        self, opened: dict[str, Any], part: dict[str, Any] | None, items: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        item = opened["item"]
        item["status"] = "incomplete"
        items.append(item)
        # orjson cannot be used here, because perhaps only half of a surrogate pair has come.
        text = json.loads(b'"' + b"".join(self._texts) + b'"').encode("utf-8", "replace").decode()
        closing: list[dict[str, Any]] = []
        if item.get("type") == "function_call":
            item["arguments"] = text
        elif part is not None:
            whole = {**part["part"], "text": text}
            item["content"] = [*(item.get("content") or ()), whole]
            closing.append({**part, "type": "response.content_part.done", "part": whole})
        return [*closing, {**opened, "type": "response.output_item.done", "item": item}]
