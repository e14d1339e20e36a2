"""Forms with a file in them: what /v1/audio/transcriptions and /translations have an engine do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from loadtests.emulator import errors

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
BYTES_PER_SECOND = 32_000
"""16-bit samples, 16,000 a second."""
TOKENS_PER_SECOND = 50
WORDS_PER_SECOND = 2

_NAME = re.compile(rb'name="([^"]*)"')


def fields(body: bytes) -> dict[str, object]:
    """The form's fields, the file as bytes. Raises Rejected."""
    delimiter = body.partition(b"\r\n")[0]
    if not delimiter.startswith(b"--"):
        raise errors.Rejected(400, "There was an error parsing the body", "Bad Request")
    found: dict[str, object] = {}
    for part in (b"\r\n" + body).split(b"\r\n" + delimiter)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if name is not None:
            found[name[1].decode()] = content if b"filename=" in head else content.decode()
    return found


def seconds(form: Mapping[str, object]) -> int:
    """How long the recording is, taken for one without a head."""
    file = form.get("file")
    if not isinstance(file, bytes):
        raise errors.missing("file", len(form))
    return max(1, len(file) // BYTES_PER_SECOND)
