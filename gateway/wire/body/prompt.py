"""Measures the prompt of a request."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from gateway.core.policy import Caps
from gateway.wire.body.checks import BAD_TYPE, BadRequest, kind, wrong_type
from gateway.wire.body.content import MAX_ITEMS, bad_role, others, parts, role_fits, size, text_or_parts, utf8

MAX_TOKEN_ID: Final = 2**31 - 1
TOKEN_BYTES: Final = 4
"""Bytes of text that a token stands for, in a prompt whose text is unknown."""
MEASURED: Final = frozenset(
    {
        *("messages", "system", "input", "prompt"),
        *("model", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "previous_response_id"),
        *("stop", "stop_sequences", "thinking", "reasoning_effort", "verbosity", "chat_template_kwargs"),
        *("encoding_format", "embed_dtype", "endianness", "task"),
    }
)
"""Names of the fields that the functions below measure, and of short ones. All others are measured by `add_rest`."""


class Prompt:
    """The size of a prompt in bytes. `exact`: number of its tokens if it came as token ids, else None. `batch`: number
    of prompts.
    """

    __slots__ = ("batch", "exact", "size")

    def __init__(self, size: int = 0, exact: int | None = None, batch: int = 1) -> None:
        self.size = size
        self.exact = exact
        self.batch = batch


Measure: TypeAlias = Callable[[dict[str, Any], Caps], Prompt]


def chat(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The size of a chat, in OpenAI's or Anthropic's format: its messages and all that comes before them."""
    messages = items(fields["messages"], "messages")
    total = 0
    for i, given in enumerate(messages):
        if type(given) is not dict:
            raise wrong_type(f"messages[{i}]", "an object", given)
        message: dict[str, Any] = given
        if not role_fits(message):
            raise bad_role(message, f"messages[{i}]")
        content = message.get("content")
        if type(content) is str:
            total += len(content) if content.isascii() else len(content.encode())
        elif type(content) is list:
            total += parts(content, f"messages[{i}].content", caps)
        elif content is not None:
            raise wrong_type(f"messages[{i}].content", "a string or an array", content)
        if len(message) > 2 or content is None:
            total += others(message, f"messages[{i}]", ("role", "content"))
    system = fields.get("system")
    if system is not None:
        total += text_or_parts(system, "system", caps)
    return Prompt(total)


def add_rest(prompt: Prompt, fields: dict[str, Any], measured: frozenset[str]) -> None:
    """Add the texts, lists and objects of all other fields to a prompt: tools, grammars, schemas, banned words.

    The engine reads or compiles them, so they count in limits and predictions. `measured`: names of all fields that the
    size already has, and of those that are short.
    """
    total = 0
    for name, value in fields.items():
        kind_of = type(value)
        if (kind_of is str or kind_of is list or kind_of is dict) and name not in measured:
            total += size(value)
    prompt.size += total
    if prompt.exact is not None:
        prompt.exact += total // TOKEN_BYTES


def items(value: Any, field: str) -> list[Any]:
    if type(value) is not list:
        raise wrong_type(field, "an array", value)
    if not value:
        raise BadRequest(field, "must not be empty", "empty_array")
    if len(value) > MAX_ITEMS:
        raise BadRequest(field, f"must have at most {MAX_ITEMS} entries", "array_above_max_length")
    return value


def batch(value: Any, field: str, caps: Caps) -> Prompt:
    if type(value) is str:
        return Prompt(utf8(value))
    if type(value) is not list:
        raise wrong_type(field, "a string or an array", value)
    if not value:
        raise BadRequest(field, "must not be empty", "empty_array")
    first = type(value[0])
    if first is int:
        return Prompt(token_ids(value, field), len(value))
    if len(value) > caps.batch:
        raise above_batch(field, caps)
    count = len(value)
    if first is str:
        for i, text in enumerate(value):
            if type(text) is not str:
                raise wrong_type(f"{field}[{i}]", "a string", text)
        return Prompt(sum(map(utf8, value)), None, count)
    if first is not list:
        raise wrong_type(f"{field}[0]", "a string, an integer or an array of integers", value[0])
    for i, ids in enumerate(value):
        if type(ids) is not list:
            raise wrong_type(f"{field}[{i}]", "an array of integers", ids)
        token_ids(ids, f"{field}[{i}]")
    tokens = sum(map(len, value))
    return Prompt(TOKEN_BYTES * tokens, tokens, count)


def above_batch(field: str, caps: Caps) -> BadRequest:
    """The error for a list of more prompts or documents than the tier allows."""
    return BadRequest(
        field, f"must have at most {caps.batch} entries for this tier (caps.batch)", "array_above_max_length"
    )


def token_ids(ids: list[Any], field: str) -> int:
    """Check token ids, and estimate the bytes of their text. The loops run in C, because a prompt may have many ids."""
    if not ids:
        raise BadRequest(field, "must not be empty", "empty_array")
    if set(map(type, ids)) != {int}:
        i = next(i for i, token in enumerate(ids) if type(token) is not int)
        raise BadRequest(f"{field}[{i}]", f"must be an integer, not {kind(ids[i])}", BAD_TYPE)
    try:
        # Signed and unsigned 32-bit words have 0 to `MAX_TOKEN_ID` in common. Half as slow as min and max.
        array("i", ids)
        array("I", ids)
    except OverflowError:
        raise BadRequest(field, f"token ids must lie between 0 and {MAX_TOKEN_ID}") from None
    return TOKEN_BYTES * len(ids)
