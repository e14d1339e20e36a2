"""Checks and measures the content of a message: text, and media if the tier allows it."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.policy import Caps
from gateway.wire.body.checks import MISSING, BadRequest, wrong_type

_dumps: Final = orjson.dumps
MEDIA_BYTES: Final = 8192
"""Estimated prompt bytes of one image, audio clip or video: about 2,000 tokens at 4 bytes each. For an image this is a
high estimate.
"""
URL_SCHEMES: Final = ("http://", "https://")
"""Beginnings of URLs that an engine may be asked to fetch. SGLang would read a file of its own host for a path."""
MAX_ITEMS: Final = 20_000
MAX_KEYS: Final = 64
MAX_ROLE_CHARS: Final = 64
MAX_BLOCK_DEPTH: Final = 3
"""Allowed depth of content within content, as in a tool's result."""

TEXT_PARTS: Final = frozenset(
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
# Types of parts with media, and the field that has the media.
MEDIA_PARTS: Final = {
    "image_url": "image_url",
    "input_image": "image_url",
    "image": "source",
    "input_audio": "input_audio",
    "audio_url": "audio_url",
    "video_url": "video_url",
}
_KNOWN: Final[dict[str, tuple[str, ...]]] = {
    name: ("type", "detail", "cache_control", holder) for name, holder in MEDIA_PARTS.items()
}
"""Fields of a part with media that are no further prompt."""
# Fields that make vLLM read a part without `type` as media, or as embeddings, which are raw tensors.
_HIDDEN_MEDIA = {*MEDIA_PARTS, *MEDIA_PARTS.values(), "audio", "video", "file", "file_id", "file_data", "uuid"} | {
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "prompt_embeds",
    "image_pil",
}


def utf8(text: str) -> int:
    """Bytes of `text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def size(value: Any) -> int:
    """Bytes of a value in a prompt: text as it is, other values as JSON."""
    if type(value) is str:
        return utf8(value)
    return 0 if value is None else len(as_json(value))


def as_json(value: Any) -> bytes:
    """`value` as JSON. Refused if it has more than 254 levels: orjson can read 1,024 levels, but write only 254."""
    try:
        return _dumps(value)
    except TypeError:
        raise BadRequest(None, "the body is nested too deeply", None) from None


def text_or_parts(value: Any, field: str, caps: Caps, depth: int = 0) -> int:
    """Prompt bytes of content, which is a text or a list of parts."""
    if type(value) is str:
        return utf8(value)
    if type(value) is list:
        return parts(value, field, caps, depth)
    raise wrong_type(field, "a string or an array", value)


def parts(given: list[Any], field: str, caps: Caps, depth: int = 0) -> int:
    """Prompt bytes of a list of parts. Parts of kinds that are not served are refused."""
    if depth == MAX_BLOCK_DEPTH:
        raise BadRequest(field, "is nested too deeply")
    if len(given) > MAX_ITEMS:
        raise BadRequest(field, f"must have at most {MAX_ITEMS} entries", "array_above_max_length")
    total = 0
    for j, part in enumerate(given):
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
            total += MEDIA_BYTES + others(part, where, _KNOWN[part_type])
        elif type(part_type) is str:
            raise BadRequest(where, "content of this type is not served")
        else:
            raise missing_or_wrong(f"{where}.type", "a string", part, "type")
    return total


def _text_part(part: dict[str, Any], where: str, caps: Caps, depth: int) -> int:
    for name in ("text", "thinking", "refusal"):
        given = part.get(name)
        if given is not None and type(given) is not str:
            raise wrong_type(f"{where}.{name}", "a string", given)
    nested = part.get("content")
    total = 0 if nested is None else text_or_parts(nested, f"{where}.content", caps, depth + 1)
    return total + others(part, where, ("content", "type"))


def others(holder: dict[str, Any], field: str, known: tuple[str, ...]) -> int:
    """Prompt bytes of the fields of `holder` that are not `known`. They count, because templates may write them into
    the prompt. Media in them is refused.
    """
    if len(holder) > MAX_KEYS:
        raise BadRequest(field, f"must have at most {MAX_KEYS} fields")
    total = 0
    for name, value in holder.items():
        if name not in known and value is not None:
            if name.lower() in _HIDDEN_MEDIA:
                raise BadRequest(f"{field}.{name.lower()}", "must not be here: send media as a content part of its own")
            total += size(value)
    return total


def _check_media(part: dict[str, Any], where: str, caps: Caps) -> None:
    """Refuse media that is not inside the request, unless the tier allows it: the engine fetches a URL from inside the
    cluster. Other schemes, such as file:, are never passed on.
    """
    if not caps.media:
        raise BadRequest(where, "images, audio and video are not served for this tier (caps.media)")
    holder = MEDIA_PARTS[part["type"]]
    media = part.get(holder)
    if holder.endswith("_url"):
        url = media.get("url") if type(media) is dict else media
        if type(url) is not str or not url.startswith("data:"):
            _check_url(url, f"{where}.{holder}", "must be a data: URL", caps)
    elif type(media) is dict and media.get("type") == "url":
        _check_url(media.get("url"), f"{where}.{holder}", "must hold base64 data", caps)
    elif type(media) is not dict or media.get("type", "base64") != "base64" or type(media.get("data")) is not str:
        raise BadRequest(f"{where}.{holder}", "must hold base64 data")


def _check_url(url: Any, field: str, wanted: str, caps: Caps) -> None:
    if not caps.media_urls:
        raise BadRequest(field, f"{wanted} for this tier (caps.media_urls)")
    if type(url) is not str or not url[:8].lower().startswith(URL_SCHEMES):
        raise BadRequest(field, f"{wanted}, or be a URL that begins with http:// or https://")


def role_fits(holder: dict[str, Any]) -> bool:
    """Whether a message has a valid role. Its length is limited, because templates write it into the prompt."""
    given = holder.get("role")
    return type(given) is str and len(given) <= MAX_ROLE_CHARS


def bad_role(holder: dict[str, Any], field: str) -> BadRequest:
    """The error for a message with an invalid role."""
    if type(holder.get("role")) is str:
        return BadRequest(f"{field}.role", f"must be at most {MAX_ROLE_CHARS} characters long")
    return missing_or_wrong(f"{field}.role", "a string", holder, "role")


def missing_or_wrong(field: str, wanted: str, holder: dict[str, Any], name: str) -> BadRequest:
    """The error for the field `name` of `holder`, which is missing or of the wrong type."""
    if holder.get(name) is None:
        return BadRequest(field, "field required", MISSING)
    return wrong_type(field, wanted, holder[name])
