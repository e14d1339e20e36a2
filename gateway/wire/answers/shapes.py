"""Structs with the fields that are read from an engine's JSON. The decoder skips all other fields.

msgspec makes its structs at run time, so this file is not compiled.
"""

from __future__ import annotations

from typing import Final

import msgspec

ABSENT = msgspec.Raw()
EMPTY = (b"", b'""', b"null", b"[]", b"{}")
"""Raw bytes of an empty field."""
ABORT = "abort"
RAW_ABORT: Final = b'"abort"'
"""Finish reason that vLLM gives running requests at its shutdown. The rest of the answer looks normal."""
DecodeError = msgspec.DecodeError
UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)
"""Exceptions that decoding may raise. UnicodeDecodeError is a ValueError; an integer of 400 digits may cause an
OverflowError.
"""


class Usage(msgspec.Struct):
    """Token counts, under the names of both dialects. `gateway/wire/answers/whole.py` reads them in this order, and
    checks their range.
    """

    prompt_tokens: object = None
    completion_tokens: object = None
    input_tokens: object = None
    output_tokens: object = None
    prompt_tokens_details: object = None
    input_tokens_details: object = None
    cache_read_input_tokens: object = None
    cache_creation_input_tokens: object = None
    completion_tokens_details: object = None
    output_tokens_details: object = None


class Delta(msgspec.Struct):
    """The part of an answer that one event adds."""

    content: msgspec.Raw = ABSENT
    reasoning: msgspec.Raw = ABSENT
    reasoning_content: msgspec.Raw = ABSENT
    refusal: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT
    function_call: msgspec.Raw = ABSENT


class Choice(msgspec.Struct):
    """The part of one of the `n` choices that an event has."""

    delta: Delta | None = None
    text: msgspec.Raw = ABSENT
    finish_reason: msgspec.Raw = ABSENT
    index: msgspec.Raw = ABSENT


class Chunk(msgspec.Struct):
    """An event of the completion APIs."""

    choices: list[Choice] | None = None
    model: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class LooseChunk(msgspec.Struct):
    """An event of the completion APIs whose choices have an unexpected form."""

    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class Inner(msgspec.Struct):
    """A message or response object inside an event."""

    id: msgspec.Raw = ABSENT
    model: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class Typed(msgspec.Struct):
    """An event of the Messages or Responses API."""

    type: str = ""
    index: msgspec.Raw = ABSENT
    message: msgspec.Raw = ABSENT
    """An object in message_start; a text in an error of the Responses API."""
    response: Inner | None = None
    usage: msgspec.Raw = ABSENT
    delta: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    code: msgspec.Raw = ABSENT


class Stop(msgspec.Struct):
    """The stop reason in Anthropic's API. It is null if the engine aborted, and missing before the end."""

    stop_reason: object = msgspec.UNSET


class WholeChoice(msgspec.Struct):
    """One of the `n` choices of a whole answer."""

    finish_reason: object = None


class Whole(msgspec.Struct):
    """A whole answer without its usage."""

    id: msgspec.Raw = ABSENT
    model: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    choices: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT
    output: msgspec.Raw = ABSENT
    stop_reason: object = msgspec.UNSET


class CountedWhole(Whole):
    """A whole answer with a valid usage."""

    usage: Usage | None = None


class LooseWhole(Whole):
    """A whole answer whose usage may have any form."""

    usage: msgspec.Raw = ABSENT


class Error(msgspec.Struct):
    """An engine's error object. Engines agree only on the field `message`."""

    code: object = None
    message: object = None
    type: object = None


values = msgspec.structs.astuple
"""The values of a struct, in the order of its fields: compiled code reads each attribute by name, which is slow."""
decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_loose_chunk = msgspec.json.Decoder(LooseChunk).decode
decode_typed = msgspec.json.Decoder(Typed).decode
decode_inner = msgspec.json.Decoder(Inner).decode
decode_whole = msgspec.json.Decoder(CountedWhole).decode
decode_loose_whole = msgspec.json.Decoder(LooseWhole).decode
decode_usage = msgspec.json.Decoder(Usage).decode
decode_choices = msgspec.json.Decoder(list[WholeChoice]).decode
decode_stop = msgspec.json.Decoder(Stop).decode
decode_error = msgspec.json.Decoder(Error).decode
