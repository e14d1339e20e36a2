"""Facts in an unstreamed answer: usage, and whether it is an answer at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from gateway.wire.answers.failure import EngineError, engine_error
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
)
from gateway.wire.numbers import count

MAX_OBJECTS_IN_USAGE: Final = 8
_decode_whole: Final = decode_whole
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
    """Whether its answers are generated tokens, so that one without any is useless."""
    own_error: bool = False
    """Whether its answers have a field `error` that is not an engine error."""
    bare_text: bool = False
    """Whether answers may be other than JSON: subtitles, or bare text."""


NUMBERS: Final = WholeForm()
GENERATED: Final = WholeForm(generates=True)


class Counted:
    """Facts in an answer: token counts, None without any, the model's name and its own id, as JSON.

    `odd`: its counts were invalid. `is_answer`: it has output, or a count of it. `cached`: prompt tokens found in the
    engine's prefix cache.
    """

    __slots__ = ("cached", "id", "is_answer", "model", "odd", "output", "prompt")

    def __init__(self, prompt: int | None, output: int | None, odd: bool) -> None:
        self.prompt = prompt
        self.output = output
        self.odd = odd
        self.cached: int | None = None
        self.is_answer = True
        self.model = b""
        self.id = b""


def read_usage(raw: Raw | bytes) -> Counted:
    """The token counts of a `usage` in JSON, in either dialect; never raises."""
    if bytes(raw) in EMPTY:
        return Counted(None, None, False)
    try:
        return _counted(decode_usage(raw))
    except UNREADABLE:
        return Counted(None, None, True)


def _counted(usage: Usage) -> Counted:
    prompt = usage.prompt_tokens if usage.input_tokens is None else usage.input_tokens
    output = usage.completion_tokens if usage.output_tokens is None else usage.output_tokens
    told = Counted(count(prompt), count(output), False)
    told.odd = (told.prompt is None) is not (prompt is None) or (told.output is None) is not (output is None)
    read, created = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    if read is not None or created is not None:
        # Anthropic's dialect counts these apart from the rest of the prompt.
        told.cached = count(read)
        if told.prompt is not None:
            told.prompt = count(told.prompt + (told.cached or 0) + (count(created) or 0))
        return told
    details = usage.prompt_tokens_details if usage.input_tokens_details is None else usage.input_tokens_details
    if type(details) is dict:
        told.cached = count(details.get("cached_tokens"))
    return told


def _decoded(body: bytes) -> tuple[Whole, Counted]:
    """The answer and its usage. Raises `AnswerError` if it is not a JSON object."""
    try:
        whole = _decode_whole(body)
    except UNREADABLE:
        pass  # perhaps only its usage is wrong
    else:
        return whole, Counted(None, None, False) if whole.usage is None else _counted(whole.usage)
    try:
        loose = decode_loose_whole(body)
    except UNREADABLE as exc:
        raise AnswerError(f"the answer is not a JSON object: {exc}") from exc
    return loose, read_usage(loose.usage)


def read_whole(form: WholeForm, body: bytes) -> tuple[Counted, EngineError | None]:
    """Usage and error of an answer that was not streamed.

    Raises `AnswerError` if it is not a JSON object, `Aborted` if the engine aborted it.
    """
    if not form.generates and body[:1] == b"[":
        return Counted(None, None, False), None  # SGLang and TEI rank documents in a bare list, without usage
    if form.bare_text and body[:1] != b"{":
        return Counted(None, None, False), None
    whole, usage = _decoded(body)
    # Most answers do not contain the word, so their choices need no second parse.
    if whole.stop_reason is None or (body.find(RAW_ABORT) >= 0 and _is_aborted(bytes(whole.choices))):
        raise Aborted
    if usage.output is None and usage.prompt is not None and not form.generates:
        usage.output = 0  # the numbers of an embedding are not tokens, so this count is exact
    usage.is_answer = not form.generates or bool(usage.output) or _has_output(whole)
    usage.model, usage.id = bytes(whole.model), bytes(whole.id)
    said = whole.error
    if said is _ABSENT or form.own_error or bytes(said) in EMPTY:
        return usage, None
    return usage, engine_error(said)


def _has_output(whole: Whole) -> bool:
    """Whether an answer without counted output has some."""
    choices = bytes(whole.choices)
    return (
        (choices not in EMPTY and not _is_silent(choices))
        or bytes(whole.content) not in EMPTY
        or bytes(whole.output) not in EMPTY
    )


def _is_silent(choices: bytes) -> bool:
    """Whether choices hold an empty text, and no other output of a model."""
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
        return False  # choices in another form than ours say nothing of an abort


def usage_at_end(tail: bytes) -> Counted:
    """Usage from the last bytes of an answer too long to be held."""
    start = tail.rfind(b'"usage":')
    end = start
    told = Counted(None, None, False)
    for _ in range(MAX_OBJECTS_IN_USAGE if start >= 0 else 0):
        end = tail.find(b"}", end + 1)
        if end < 0:
            break
        told = read_usage(tail[start + 8 : end + 1].strip())
        if not told.odd:
            break  # the end of the usage itself, not of an object in it
    return told
