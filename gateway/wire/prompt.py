"""What of a request becomes prompt: how long it is, and whether it is text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from gateway.core.rules import Caps
from gateway.wire.checks import BAD_TYPE, MISSING, BadRequest, kind, wrong_type

MEDIA_BYTES = 8192
"""What one image, audio clip or video counts as: about 2,000 tokens at 4 bytes each, on the long side for an image."""
MAX_TOKEN_ID = 2**31 - 1
MAX_BLOCK_DEPTH = 3
"""How deep content may hold content, as a tool's result does."""

TEXT_PARTS = frozenset(
    {
        "text",
        "input_text",
        "output_text",
        "refusal",
        "thinking",
        "redacted_thinking",
        "reasoning_text",
        "summary_text",
        "tool_use",
        "tool_result",
        "tool_reference",
        "tool_addition",
        "tool_removal",
    }
)
MEDIA_PARTS = frozenset(
    {
        "image",
        "image_url",
        "input_image",
        "audio",
        "audio_url",
        "input_audio",
        "video",
        "video_url",
        "input_video",
        "document",
        "file",
        "input_file",
    }
)
# vLLM takes the kind of a part from its keys where `type` does not say; the embeddings are raw tensors.
MEDIA_KEYS = MEDIA_PARTS | {"source", "file_id", "file_data", "uuid"}
TENSOR_KEYS = frozenset({"image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil"})
RESPONSE_ITEMS = frozenset(
    {"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"}
)


@dataclass(slots=True)
class Prompt:
    """The size of a prompt. `exact` is in tokens, for prompts that came as token ids; `batch` counts prompts."""

    size: int = 0
    exact: int | None = None
    messages: int = 0
    batch: int = 1


Measure: TypeAlias = Callable[[dict[str, Any], Caps], Prompt]


def utf8(text: str) -> int:
    """Bytes of `text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def size(value: Any) -> int:
    """Bytes of a value as it would stand in a prompt: text as it is, all else as JSON."""
    if type(value) is str:
        return utf8(value)
    if value is None:
        return 0
    try:
        return len(orjson.dumps(value))
    except TypeError:  # orjson writes 254 levels; it reads 1,024
        raise BadRequest(None, "the document is nested too deeply") from None


def chat(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The messages of a chat, of OpenAI's or Anthropic's kind, and all that is laid before them."""
    messages = fields["messages"]
    if type(messages) is not list:
        raise wrong_type("messages", "an array", messages)
    if not messages:
        raise BadRequest("messages", "must not be empty", "empty_array")
    total = 0
    for i, message in enumerate(messages):
        if type(message) is not dict:
            raise wrong_type(f"messages[{i}]", "an object", message)
        role = message.get("role")
        if type(role) is not str:
            raise _missing_or_wrong(f"messages[{i}].role", "a string", message, "role")
        content = message.get("content")
        if type(content) is str:
            total += len(content) if content.isascii() else len(content.encode())
        elif type(content) is list:
            total += _parts(content, f"messages[{i}].content", caps)
        elif content is not None:
            raise wrong_type(f"messages[{i}].content", "a string or an array", content)
        if len(message) > 2:
            total += _others(message, f"messages[{i}]", ("role", "content"))
    system = fields.get("system")
    if system is not None:
        total += _text_or_parts(system, "system", caps)
    for name in ("tools", "functions", "documents", "response_format"):
        if name in fields:
            total += size(fields[name])
    return Prompt(total, None, len(messages))


def completion(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The prompt of a completion: a text, a batch of texts, token ids, or a batch of those."""
    prompt = _batch(fields["prompt"], "prompt", caps)
    for name in ("suffix", "response_format"):
        if name in fields:
            prompt.size += size(fields[name])
            prompt.exact = None if name == "suffix" else prompt.exact
    return prompt


def embedding(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The input of an embedding: as a completion's prompt."""
    return _batch(fields["input"], "input", caps)


def responses(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The input of the Responses API: a text or a list of items."""
    given = fields["input"]
    count = 1
    if type(given) is str:
        total = utf8(given)
    elif type(given) is list:
        if not given:
            raise BadRequest("input", "must not be empty", "empty_array")
        total = sum(_item(item, f"input[{i}]", caps) for i, item in enumerate(given))
        count = len(given)
    else:
        raise wrong_type("input", "a string or an array", given)
    for name in ("instructions", "tools", "text"):
        if name in fields:
            total += size(fields[name])
    return Prompt(total, None, count)


def _item(item: Any, field: str, caps: Caps) -> int:
    if type(item) is not dict:
        raise wrong_type(field, "an object", item)
    item_type = item.get("type", "message")
    if item_type == "item_reference":
        raise BadRequest(field, "item_reference is not served here: no answer is kept, send the item itself")
    if type(item_type) is not str or item_type not in RESPONSE_ITEMS:
        raise BadRequest(f"{field}.type", f"must be one of {', '.join(sorted(RESPONSE_ITEMS))}")
    if item_type == "message" and type(item.get("role")) is not str:
        raise _missing_or_wrong(f"{field}.role", "a string", item, "role")
    total = 0
    for name in ("content", "output", "summary"):
        if item.get(name) is not None:
            total += _text_or_parts(item[name], f"{field}.{name}", caps)
    return total + _others(item, field, ("content", "output", "summary"))


def _text_or_parts(value: Any, field: str, caps: Caps, depth: int = 0) -> int:
    if type(value) is str:
        return utf8(value)
    if type(value) is list:
        return _parts(value, field, caps, depth)
    raise wrong_type(field, "a string or an array", value)


def _parts(parts: list[Any], field: str, caps: Caps, depth: int = 0) -> int:
    if depth == MAX_BLOCK_DEPTH:
        raise BadRequest(field, "is nested too deeply")
    total = 0
    for j, part in enumerate(parts):
        where = f"{field}[{j}]"
        if type(part) is not dict:
            raise wrong_type(where, "an object", part)
        part_type = part.get("type")
        if part_type == "text" and len(part) == 2 and type(part.get("text")) is str:
            total += utf8(part["text"])
        elif type(part_type) is str and part_type in TEXT_PARTS:
            total += _text_part(part, where, caps, depth)
        elif type(part_type) is str and part_type in MEDIA_PARTS:
            _check_media(part, where, caps)
            total += MEDIA_BYTES
        elif type(part_type) is str:
            raise BadRequest(where, "content of this type is not served")
        else:
            raise _missing_or_wrong(f"{where}.type", "a string", part, "type")
    return total


def _text_part(part: dict[str, Any], where: str, caps: Caps, depth: int) -> int:
    for name in ("text", "thinking", "refusal"):
        if type(part.get(name, "")) is not str:
            raise wrong_type(f"{where}.{name}", "a string", part[name])
    nested = part.get("content")
    total = 0 if nested is None else _text_or_parts(nested, f"{where}.content", caps, depth + 1)
    return total + _others(part, where, ("content", "type"))


def _others(holder: dict[str, Any], field: str, known: tuple[str, ...]) -> int:
    """Bytes of what `holder` has besides: templates may render it, so it counts; media must not hide in it."""
    total = 0
    for name, value in holder.items():
        if name not in known and value is not None:
            if name.lower() in MEDIA_KEYS or name.lower() in TENSOR_KEYS:
                raise BadRequest(f"{field}.{name.lower()}", "media does not belong here")
            total += size(value)
    return total


def _check_media(part: dict[str, Any], where: str, caps: Caps) -> None:
    if not caps.media:
        raise BadRequest(where, "images, audio, video and files are not served for this tier")
    if not TENSOR_KEYS.isdisjoint(part):
        raise BadRequest(where, "embeddings are not served")
    for name, value in part.items():
        inner = value if type(value) is dict else {name: value}
        for key in ("url", *(k for k in inner if k.endswith("_url"))):
            link = inner.get(key)
            # The engine would fetch it from inside the cluster.
            if link is not None and not (type(link) is str and link.startswith("data:")):
                raise BadRequest(f"{where}.{name[:64]}", "only data: URLs are served")


def _batch(value: Any, field: str, caps: Caps) -> Prompt:
    if type(value) is str:
        return Prompt(utf8(value), None, 1)
    if type(value) is not list:
        raise wrong_type(field, "a string or an array", value)
    if not value:
        raise BadRequest(field, "must not be empty", "empty_array")
    first = type(value[0])
    if first is int:
        return Prompt(_token_ids(value, field), len(value), 1)
    if len(value) > caps.batch:
        raise BadRequest(field, f"must have at most {caps.batch} entries for this tier", "array_above_max_length")
    count = len(value)
    if first is str:
        for i, text in enumerate(value):
            if type(text) is not str:
                raise wrong_type(f"{field}[{i}]", "a string", text)
        return Prompt(sum(map(utf8, value)), None, count, count)
    if first is not list:
        raise wrong_type(f"{field}[0]", "a string, an integer or an array of integers", value[0])
    for i, ids in enumerate(value):
        if type(ids) is not list:
            raise wrong_type(f"{field}[{i}]", "an array of integers", ids)
        _token_ids(ids, f"{field}[{i}]")
    tokens = sum(map(len, value))
    return Prompt(4 * tokens, tokens, count, count)


def _token_ids(ids: list[Any], field: str) -> int:
    """Bytes that these tokens stand for, about; the loops run in C."""
    if not ids:
        raise BadRequest(field, "must not be empty", "empty_array")
    if set(map(type, ids)) != {int}:
        i = next(i for i, token in enumerate(ids) if type(token) is not int)
        raise BadRequest(f"{field}[{i}]", f"must be an integer, not {kind(ids[i])}", BAD_TYPE)
    if min(ids) < 0 or max(ids) > MAX_TOKEN_ID:
        raise BadRequest(field, f"token ids must lie between 0 and {MAX_TOKEN_ID}")
    return 4 * len(ids)


def _missing_or_wrong(field: str, wanted: str, holder: dict[str, Any], name: str) -> BadRequest:
    if holder.get(name) is None:
        return BadRequest(field, "field required", MISSING)
    return wrong_type(field, wanted, holder[name])
