"""A stream put together to the whole answer that it would have been, had nobody asked for a stream.

What is absent from a stream and null in an answer is null here as well: the names are those of vLLM 0.32.
"""

from __future__ import annotations

import json
from io import StringIO
from typing import Any, Final

import orjson

from gateway.core.request import Endpoint
from gateway.wire.answers.sse import EventSplitter, data_of

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a stream that is put together: far beyond any answer, and short of what would hurt."""

MAX_DIGITS: Final = 19
"""An integer of so many digits may be beyond 64 bits, which orjson neither reads nor writes."""

_NULL: Final = ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
_NULL_OF_CHATS: Final = ("prompt_logprobs", "prompt_token_ids", "prompt_text")
_NULL_OF_USAGE: Final = ("prompt_tokens_details", "completion_tokens_details")
_NULL_OF_MESSAGES: Final = ("refusal", "annotations", "audio", "function_call", "reasoning")
_SAID_ONCE: Final = ("finish_reason", "stop_reason")
_CHOICE: Final = ("logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts")
_CHOICE_OF_TEXT: Final = (*_CHOICE, "prompt_logprobs", "prompt_token_ids")


class AssemblyError(Exception):
    """The events make no whole answer."""


class Assembly:
    """One answer, growing. Subclasses know one API each. Raises `AssemblyError` for what cannot be put together."""

    __slots__ = ("_size", "_splitter")

    def __init__(self) -> None:
        self._splitter = EventSplitter(MAX_BYTES)
        self._size = 0

    def add(self, pieces: list[bytes]) -> None:
        """More of the stream, in whole events."""
        for piece in pieces:
            self._size += len(piece)
            if self._size > MAX_BYTES:
                raise AssemblyError("the stream is too long to be put together")
            for event in self._splitter.feed(piece):
                payload = data_of(event)
                if payload and not payload.startswith(b"[DONE]"):
                    self._add(payload)

    def _add(self, payload: bytes) -> None:
        try:
            self._take(_loads(payload))
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise AssemblyError(f"an event cannot be put together with others: {exc!r}") from exc

    def whole(self) -> bytes:
        """The answer, as JSON."""
        try:
            return orjson.dumps(self._whole(), default=_written)
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise AssemblyError(f"the stream makes no answer: {exc!r}") from exc

    def _take(self, event: dict[str, Any]) -> None:
        raise NotImplementedError

    def _whole(self) -> dict[str, Any]:
        raise NotImplementedError


class CompletionAssembly(Assembly):
    """Chat and plain completions."""

    __slots__ = ("_chat", "_choices", "_head")

    def __init__(self, chat: bool) -> None:
        super().__init__()
        self._chat = chat
        self._head: dict[str, Any] = dict.fromkeys(_NULL + _NULL_OF_CHATS if chat else _NULL)
        self._choices: dict[int, dict[str, Any]] = {}

    def _take(self, event: dict[str, Any]) -> None:
        for choice in event.pop("choices", None) or ():
            index = choice.pop("index", None) or 0
            if index not in self._choices:
                self._choices[index] = self._new(index)
            mine = self._choices[index]
            if self._chat:
                _grow_message(mine["message"], choice.pop("delta", None) or {})
            for name, value in choice.items():
                _grow(mine, name, value)
        for name, value in event.items():
            if value is not None:
                self._head[name] = value

    def _new(self, index: int) -> dict[str, Any]:
        if not self._chat:
            return {"index": index, "text": "", **dict.fromkeys(_CHOICE_OF_TEXT)}
        message = {"role": "assistant", "content": None, **dict.fromkeys(_NULL_OF_MESSAGES)}
        return {"index": index, "message": message, **dict.fromkeys(_CHOICE)}

    def _whole(self) -> dict[str, Any]:
        head = self._head
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            calls = self._chat and _finish_message(choice["message"])
            # Some servers end a stream with [DONE] alone; a whole answer always has a reason, and clients insist on it.
            choice["finish_reason"] = choice["finish_reason"] or ("tool_calls" if calls else "stop")
        usage = head.get("usage")
        told = {} if usage is None else {"usage": dict.fromkeys(_NULL_OF_USAGE) | usage}
        return {**head, "object": "chat.completion" if self._chat else "text_completion", "choices": choices, **told}


class MessageAssembly(Assembly):
    """Anthropic Messages."""

    __slots__ = ("_arguments", "_message")

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] = {}
        self._arguments: dict[int, list[str]] = {}
        """JSON of the inputs of tools, by content block."""

    def _take(self, event: dict[str, Any]) -> None:
        message = self._message
        match event.get("type"):
            case "message_start":
                message.update(event["message"])
            case "content_block_start":
                message.setdefault("content", []).append(event["content_block"])
            case "content_block_delta":
                self._delta(event["index"], event["delta"])
            case "message_delta":
                message.update(event.get("delta") or {})
                message["usage"] = {**(message.get("usage") or {}), **(event.get("usage") or {})}
                if "tailgate" in event:
                    message["tailgate"] = event["tailgate"]

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._message["content"][index]
        for name, value in delta.items():
            if name == "partial_json":
                self._arguments.setdefault(index, []).append(value)
            elif name != "type":
                _grow(block, name, value)

    def _whole(self) -> dict[str, Any]:
        for index, texts in self._arguments.items():
            self._message["content"][index]["input"] = _object("".join(texts))
        return self._message


class ResponseAssembly(Assembly):
    """OpenAI Responses: the last event repeats all of it."""

    __slots__ = ("_response",)

    def __init__(self) -> None:
        super().__init__()
        self._response: dict[str, Any] = {}

    def _take(self, event: dict[str, Any]) -> None:
        if event.get("type") in ("response.completed", "response.incomplete"):
            self._response = event["response"]

    def _whole(self) -> dict[str, Any]:
        if not self._response:
            raise LookupError("no event has the whole response")
        return self._response


def assembly(endpoint: Endpoint) -> Assembly:
    """A new one for an endpoint that streams."""
    if endpoint is Endpoint.MESSAGES:
        return MessageAssembly()
    if endpoint is Endpoint.RESPONSES:
        return ResponseAssembly()
    return CompletionAssembly(endpoint is Endpoint.CHAT)


def _written(text: object) -> str:
    """For JSON: a text that came in pieces."""
    if not isinstance(text, StringIO):
        raise TypeError(f"there is no way to write a {type(text).__name__}")
    return text.getvalue()


def _grow(into: dict[str, Any], name: str, value: Any) -> None:
    """Text and lists go on, an object does in its fields, anything else is replaced; null adds nothing."""
    old = into.get(name)
    if value is None:
        into.setdefault(name, None)
    elif isinstance(old, StringIO):
        old.write(value)
    elif old and isinstance(old, str) and name not in _SAID_ONCE:
        into[name] = whole = StringIO()
        whole.write(old)
        whole.write(value)
    elif isinstance(old, list):
        old.extend(value)
    elif isinstance(old, dict):
        for inner, more in value.items():
            _grow(old, inner, more)
    else:
        into[name] = value


def _grow_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    message["role"] = delta.pop("role", None) or message["role"]
    for call in delta.pop("tool_calls", None) or ():
        calls = message.setdefault("tool_calls", {})
        index = call.get("index")
        # Without an index, one with an id of its own is another call, and one without goes on with the latest.
        index = (len(calls) if call.get("id") else max(0, len(calls) - 1)) if index is None else index
        mine = calls.setdefault(index, {"id": None, "type": "function", "function": {}})
        function = call.get("function") or {}
        mine["id"] = mine["id"] or call.get("id")
        mine["type"] = call.get("type") or mine["type"]
        mine["function"]["name"] = mine["function"].get("name") or function.get("name")
        _grow(mine["function"], "arguments", function.get("arguments") or "")
    for name, value in delta.items():
        _grow(message, name, value)


def _finish_message(message: dict[str, Any]) -> bool:
    """Bring a message into its final form; whether it calls tools."""
    calls = message.get("tool_calls")
    if isinstance(calls, dict):
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    if message["content"] == "" and (calls or message["reasoning"] or message.get("reasoning_content")):
        message["content"] = None  # "" came with the role, and nothing after it
    return bool(calls)


def _loads(payload: bytes) -> dict[str, Any]:
    """The JSON of an event; bytes that are not UTF-8 are replaced, numbers that no client could read are null."""
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError:
        text = payload.decode("utf-8", "replace")
        try:
            event = json.loads(text, parse_int=_bounded, parse_constant=_no_number)
        except RecursionError as deep:
            raise ValueError("an event is nested too deeply") from deep
    if type(event) is not dict:
        raise TypeError("an event is not an object")
    return event


def _bounded(digits: str) -> int | None:
    return int(digits) if len(digits) < MAX_DIGITS else None


def _no_number(_name: str) -> None:
    """NaN and the infinities, which JSON does not have."""


def _object(text: str) -> Any:
    """What a tool is given; nothing where the answer was cut short before it was complete."""
    try:
        return orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return {}
