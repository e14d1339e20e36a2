"""Measures texts that are read in pairs: a cross-encoder reads a query together with each document."""

from __future__ import annotations

from typing import Any

from gateway.core.policy import Caps
from gateway.wire.body.checks import MISSING, BadRequest, wrong_type
from gateway.wire.body.content import others, parts, text_or_parts, utf8
from gateway.wire.body.prompt import Prompt, above_batch, token_ids


def only_one(fields: dict[str, Any], names: tuple[str, ...]) -> str:
    """The one of `names` that a request has. A request with several of them is refused, because engines choose
    differently.
    """
    found = [name for name in names if name in fields]
    if not found:
        raise BadRequest(names[0], "field required", MISSING)
    if len(found) > 1:
        raise BadRequest(found[1], f"stands for the same as {found[0]}: give one of them")
    return found[0]


def text(value: Any, field: str, caps: Caps) -> int:
    """Bytes of one text: a string, token ids, parts of content, or an object with one of these."""
    if type(value) is str:
        return utf8(value)
    if type(value) is list and value:
        return token_ids(value, field) if type(value[0]) is int else parts(value, field, caps)
    if type(value) is dict and value:
        content = value.get("content")
        held = text_or_parts(content, f"{field}.content", caps) if content is not None else 0
        return held + others(value, field, ("content", "type"))
    raise wrong_type(field, "a string or an object that holds text", value)


def texts(value: Any, field: str, caps: Caps) -> list[int]:
    """Bytes of each of several texts.

    A string, or a list of token ids, is one text. In vLLM, each part of a content is one text.
    """
    if type(value) is dict and type(value.get("content")) is list:
        field += ".content"
        return [parts([part], field, caps) for part in _counted(value["content"], field, caps)]
    if type(value) is not list or (value and type(value[0]) is int):
        return [text(value, field, caps)]
    return [text(one, f"{field}[{i}]", caps) for i, one in enumerate(_counted(value, field, caps))]


def crossed(left: list[int], right: list[int], field: str, caps: Caps) -> Prompt:
    """The size of all pairs. A single `left` text is paired with each `right` text; otherwise texts are paired by
    position.
    """
    if len(left) != len(right) and len(left) > 1:
        raise BadRequest(field, f"must have {len(left)} entries, one for each text it is compared with")
    times = len(right) if len(left) == 1 else 1
    return Prompt(sum(left) * times + sum(right), None, len(right))


def _counted(value: list[Any], field: str, caps: Caps) -> list[Any]:
    if not value:
        raise BadRequest(field, "must not be empty", "empty_array")
    if len(value) > caps.batch:
        raise above_batch(field, caps)
    return value
