"""Reads facts from an unstreamed answer: its usage, and whether it really is an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from gateway.wire.answers.failure import EngineError, engine_error, is_error_object
from gateway.wire.answers.shapes import (
    ABORT,
    ABSENT,
    EMPTY,
    RAW_ABORT,
    UNREADABLE,
    Usage,
    Whole,
    decode_choices,
    decode_loose_whole,
    decode_usage,
    decode_whole,
    values,
)
from gateway.wire.numbers import count

MAX_OBJECTS_IN_USAGE: Final = 8
_decode_whole: Final = decode_whole
_values: Final = values
_ABSENT: Final = ABSENT
_NO_TEXT: Final = re.compile(rb'"(?:content|text)"\s*:\s*""')
_TEXT: Final = re.compile(rb'"(?:content|text)"\s*:\s*(?:"[^"]|\[)')
_OTHER_OUTPUT: Final = re.compile(
    rb'"(?:tool_calls|function_call|reasoning|reasoning_content|refusal|audio)"\s*:(?!\s*(?:null|\[\]|""))'
)


class AnswerError(Exception):
    """The answer does not have the form of its API."""


class Aborted(Exception):
    """The engine aborted the request, and the answer says so."""


@dataclass(frozen=True, slots=True)
class WholeForm:
    """The form of an API's whole answers."""

    generates: bool = False
    """Whether answers are generated tokens, so that an answer without tokens is useless."""
    own_error: bool = False
    """Whether answers have a field `error` that is not an engine's error."""
    null_stop_aborts: bool = False
    """Whether `stop_reason: null` means that the engine aborted the request. Elsewhere vLLM writes it beside every
    finish reason, and servers write it on the top level.
    """
    bare_text: bool = False
    """Whether answers may be subtitles or plain text instead of JSON."""


NUMBERS: Final = WholeForm()
GENERATED: Final = WholeForm(generates=True)


class Counted:
    """Facts in an answer: token counts (None if missing), and the model's name and the answer's id as JSON.

    `odd`: whether the counts were invalid. `is_answer`: whether it has output or a count of output. `cached`: prompt
    tokens that the engine found in its prefix cache. `reasoning`: the part of `output` that is reasoning.
    """

    __slots__ = ("cached", "id", "is_answer", "model", "odd", "output", "prompt", "reasoning")

    def __init__(self, prompt: int | None, output: int | None, odd: bool) -> None:
        self.prompt = prompt
        self.output = output
        self.odd = odd
        self.cached: int | None = None
        self.reasoning: int | None = None
        self.is_answer = True
        self.model = b""
        self.id: Raw | bytes = b""


def read_usage(raw: Raw | bytes) -> Counted:
    """The token counts of a `usage` object in JSON, in either dialect. Never raises."""
    if bytes(raw) in EMPTY:
        return Counted(None, None, False)
    try:
        return _counted(decode_usage(raw))
    except UNREADABLE:
        return Counted(None, None, True)


def _counted(usage: Usage) -> Counted:
    asked, answered, prompt, output, details, input_details, read, created, chat, thought = _values(usage)
    prompt = asked if prompt is None else prompt
    output = answered if output is None else output
    told = Counted(count(prompt), count(output), False)
    told.odd = (told.prompt is None) is not (prompt is None) or (told.output is None) is not (output is None)
    thought = chat if thought is None else thought
    if type(thought) is dict:
        told.reasoning = count(thought.get("reasoning_tokens"))
    if read is not None or created is not None:
        # In Anthropic's dialect, these tokens are not included in the prompt's count.
        told.cached = count(read)
        if told.prompt is not None:
            told.prompt = count(told.prompt + (told.cached or 0) + (count(created) or 0))
        return told
    details = details if input_details is None else input_details
    if type(details) is dict:
        told.cached = count(details.get("cached_tokens"))
    return told


def _decoded(body: bytes) -> tuple[Whole, Counted]:
    """The answer and its usage. Raises `AnswerError` if it is not a JSON object."""
    try:
        whole = _decode_whole(body)
    except UNREADABLE:
        pass  # the usage alone may be malformed, so the answer is decoded again without it
    else:
        usage = whole.usage
        return whole, Counted(None, None, False) if usage is None else _counted(usage)
    try:
        loose = decode_loose_whole(body)
    except UNREADABLE as exc:
        raise AnswerError(f"the answer is not a JSON object: {exc}") from exc
    return loose, read_usage(loose.usage)


def read_whole(form: WholeForm, body: bytes) -> tuple[Counted, EngineError | None]:
    """Read usage and error of an answer that was not streamed.

    Raises `AnswerError` if the answer is not a JSON object, `Aborted` if the engine aborted it.
    """
    if not form.generates and body[:1] == b"[":
        return Counted(None, None, False), None  # SGLang and TEI answer a ranking with a bare list, without usage
    if form.bare_text and body[:1] != b"{":
        return Counted(None, None, False), None
    whole, usage = _decoded(body)
    # The choices are parsed only if the answer contains the word; most answers do not.
    if form.null_stop_aborts and whole.stop_reason is None:
        raise Aborted
    if body.find(RAW_ABORT) >= 0 and _is_aborted(bytes(whole.choices)):
        raise Aborted
    if usage.output is None and usage.prompt is not None and not form.generates:
        usage.output = 0  # the numbers of an embedding are not tokens, so 0 is exact
    usage.is_answer = not form.generates or bool(usage.output) or _has_output(whole)
    usage.model, usage.id = bytes(whole.model), whole.id
    said = whole.error
    if said is _ABSENT and not (form.generates and usage.is_answer) and is_error_object(body):
        return usage, engine_error(Raw(body))
    if said is _ABSENT or form.own_error or bytes(said) in EMPTY:
        return usage, None
    return usage, engine_error(said)


def _has_output(whole: Whole) -> bool:
    """Whether an answer without a count of output has output."""
    choices = bytes(whole.choices)
    return (
        (choices not in EMPTY and not _is_silent(choices))
        or bytes(whole.content) not in EMPTY
        or bytes(whole.output) not in EMPTY
    )


def _is_silent(choices: bytes) -> bool:
    """Whether the choices have an empty text and no other output."""
    return (
        choices.find(b'""') >= 0
        and _NO_TEXT.search(choices) is not None
        and _OTHER_OUTPUT.search(choices) is None
        and _TEXT.search(choices) is None
    )


def _is_aborted(choices: bytes) -> bool:
    try:
        return any(choice.finish_reason == ABORT for choice in decode_choices(choices))
    except UNREADABLE:
        return False  # choices in an unknown form do not show an abort


def usage_at_end(tail: bytes) -> Counted:
    """The usage in the last bytes of an answer that is too long to be held in memory."""
    start = tail.rfind(b'"usage":')
    end = start
    told = Counted(None, None, False)
    for _ in range(MAX_OBJECTS_IN_USAGE if start >= 0 else 0):
        end = tail.find(b"}", end + 1)
        if end < 0:
            break
        told = read_usage(tail[start + 8 : end + 1].strip())
        if not told.odd:
            break  # this brace ends the usage itself, not an object in it
    return told
