"""Answers of other APIs than chat and completions, in the terms of those: OpenAI's Responses, Anthropic's Messages,
and answers without text, such as embeddings and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DELTAS = ("text", "thinking", "partial_json")
"""Fields of a delta of Anthropic's Messages that hold content."""
LISTS = ("data", "results")
"""Where answers of embeddings, scores, rerankers and poolers have their values."""
OVER = {"response.completed": "stop", "response.incomplete": "length"}
"""Last events of a stream of OpenAI's Responses, with what chat calls their reason."""


@dataclass(slots=True)
class Piece:
    """The contents of one event, or of a whole answer."""

    content: bool = False
    text: str = ""
    finish: str = ""
    """Why the answer ended; empty before its end."""
    done: bool = False
    """Whether the stream announces its end."""
    error: Any = None
    usage: Any = None


def event_of(event: dict[str, Any]) -> Piece:
    """An event with a `type`, of a stream of Responses or Messages."""
    kind, found = event["type"], Piece()
    delta = event.get("delta")
    match kind:
        case "content_block_delta" if isinstance(delta, dict):
            found.text = str(delta.get("text") or "")
            found.content = any(delta.get(name) for name in DELTAS)
        case "message_start":
            found.usage = _inside(event, "message").get("usage")
        case "message_delta":
            found.finish = str(_inside(event, "delta").get("stop_reason") or "")
            found.usage = event.get("usage")
        case "message_stop":
            found.done = True
        case "response.completed" | "response.incomplete":
            found.finish, found.done = OVER[kind], True
            found.usage = _inside(event, "response").get("usage")
        case "response.failed":
            found.error = _inside(event, "response").get("error") or kind
        case "error":
            found.error = event.get("error") or event.get("message") or kind
        case _ if isinstance(delta, str) and kind.startswith("response."):
            found.content = bool(delta)
            found.text = delta if kind == "response.output_text.delta" else ""
    return found


def whole_of(answer: dict[str, Any]) -> Piece:
    """An answer that is not streamed, and has no `choices`."""
    found = Piece(usage=answer.get("usage"))
    if any(isinstance(answer.get(name), list) and answer[name] for name in LISTS):
        found.content, found.finish = True, "stop"
    elif isinstance(blocks := answer.get("content"), list):
        found.text = "".join(str(block.get("text") or "") for block in blocks if isinstance(block, dict))
        found.content = bool(blocks)
        found.finish = str(answer.get("stop_reason") or "")
    elif isinstance(items := answer.get("output"), list):
        parts = [part for item in items if isinstance(item, dict) for part in item.get("content") or ()]
        found.text = "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
        found.content = bool(items)
        found.finish = str(answer.get("status") or "")
    return found


def tokens_in(usage: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Tokens of the prompt, of the answer, and of the prompt found in a cache, in any dialect."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return (
        usage.get("prompt_tokens", usage.get("input_tokens")),
        usage.get("completion_tokens", usage.get("output_tokens")),
        usage.get("cache_read_input_tokens") if cached is None else cached,
    )


def _inside(event: dict[str, Any], name: str) -> dict[str, Any]:
    found = event.get(name)
    return found if isinstance(found, dict) else {}
