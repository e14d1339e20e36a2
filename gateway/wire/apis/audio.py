"""Speech to text: POST /v1/audio/transcriptions and /v1/audio/translations of OpenAI and vLLM 0.32. Bodies are forms
with a file.

The file is kept in memory like any other body, within the same limit. A retry needs the whole file. Also, the model's
name may come after the file.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.answers.whole import WholeForm
from gateway.wire.apis.chunks import CompletionReader
from gateway.wire.apis.fields import SHARED, STRIP, ruled
from gateway.wire.apis.row import Answers, Api, Shape
from gateway.wire.body import bounds, checks, form
from gateway.wire.body.checks import BadRequest, Check, wrong_type
from gateway.wire.body.content import size
from gateway.wire.body.form import File
from gateway.wire.body.prompt import Prompt

FILE_BYTES: Final = 80
"""This many bytes of a file count as one byte of prompt. Speech models read about 50 tokens per second of sound
(Whisper has 1,500 positions for 30 s). A second is about 16 kB of MP3. So a token is 320 bytes of a file, or four bytes
of text. Formats with fewer bytes per second are undercounted. If streams report usage, the ratio is learned.
"""
FLAGS: Final = (
    *("stream", "stream_include_usage", "stream_continuous_usage_stats", "include_stop_str_in_output"),
    "use_beam_search",
)
NUMBERS: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "max_completion_tokens", "n", "length_penalty"),
)


def _file(value: Any, field: str, caps: Caps) -> Any:
    if isinstance(value, File):
        return value
    raise wrong_type(field, "a file", value)


def _number(value: Any, field: str, caps: Caps) -> Any:
    if type(value) is int or type(value) is float:
        return value
    raise wrong_type(field, "a number", value)


def _words(value: Any, field: str, caps: Caps) -> Any:
    for i, word in enumerate(checks.short(checks.array(value, field, caps), field, caps)):
        checks.word(word, f"{field}[{i}]", caps)
    return value


def read(body: bytes) -> dict[str, Any]:
    """The fields of the form, with the types that they would have in JSON. Raises `BadRequest`."""
    fields = form.read(body, FLAGS, NUMBERS)
    for name, value in fields.items():
        if isinstance(value, File) and name != "file" and name in FIELDS:
            raise BadRequest(name, "must be a text, not a file")
    return fields


def write(fields: dict[str, Any]) -> bytes:
    """The form without the model's name. A stream is asked for its usage."""
    if fields.get("stream"):
        fields["stream_include_usage"] = True
    return form.write(fields)


def measure(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The size of the prompt, estimated from the size of the file. The duration of the sound is unknown without
    decoding.
    """
    file: File = fields["file"]
    return Prompt(len(file.content) // FILE_BYTES + size(fields.get("prompt")) + size(fields.get("hotwords")))


FIELDS: Final[dict[str, Check]] = {
    **SHARED,
    # No engine reads these.
    **ruled(STRIP, "chunking_strategy include include[] keywords keywords[] languages languages[]"),
    **ruled(STRIP, "known_speaker_names[] known_speaker_references[]"),
    "model": checks.model_name,
    "file": _file,
    **ruled(checks.string, "prompt hotwords user"),
    **ruled(checks.word, "language to_language response_format"),
    **ruled(_number, "temperature top_p top_k min_p seed frequency_penalty presence_penalty repetition_penalty"),
    "length_penalty": _number,
    **ruled(checks.boolean, " ".join(FLAGS)),
    "use_beam_search": bounds.beam_search,
    "n": bounds.choices,
    "timestamp_granularities[]": _words,
    "max_completion_tokens": bounds.output_cap,
}
_SHAPE: Final = Shape(
    FIELDS,
    ("file",),
    measure,
    measured=None,
    caps=(),
    stop=None,
    priority=False,
    usage_flag="stream_include_usage",
    read=read,
    write=write,
)
_ANSWERS: Final = Answers(WholeForm(bare_text=True), CompletionReader)
TRANSCRIPTIONS: Final = Api("transcriptions", (Endpoint.TRANSCRIPTIONS,), _SHAPE, _ANSWERS)
TRANSLATIONS: Final = Api("translations", (Endpoint.TRANSLATIONS,), _SHAPE, _ANSWERS)
