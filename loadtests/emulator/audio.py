"""Forms with a file: the work of /v1/audio/transcriptions and /translations for an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping

from loadtests.emulator import errors

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
BYTES_PER_SECOND = 32_000
"""Bytes per second of raw audio: 16-bit samples, 16,000 a second."""
TOKENS_PER_SECOND = 50
WORDS_PER_SECOND = 2

_NAME = re.compile(rb'name="([^"]*)"')


def fields(body: bytes) -> dict[str, object]:
    """The form's fields; the file is bytes. Raises Rejected."""
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
    """Seconds of the recording, if it is raw samples."""
    file = form.get("file")
    if not isinstance(file, bytes):
        raise errors.missing("file", len(form))
    return max(1, len(file) // BYTES_PER_SECOND)
