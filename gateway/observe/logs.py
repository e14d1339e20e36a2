"""Log lines of the process: one per event, as JSON or as text.

The values of a line are in `extra={"fields": {...}}`. All text from clients is escaped, so that no request can forge a
line. Keys never reach the log, because a `Record` has the tenant and the tier but not the key.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TextIO

from gateway.core.redundancy.request_quarantine import KEEP_S, News

QUARANTINE = logging.getLogger("tailgate.quarantine")
MAX_NEWS = 10


def configure_logging(level: str, as_json: bool, stream: TextIO | None = None) -> None:
    """Send the log of the whole process to `stream` (stderr by default). `level`: "debug", "info" and so on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    # These libraries log every request, connection or file change at levels that would flood the log.
    for noisy in ("httpcore", "httpx", "uvicorn.access", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_quarantine(news: Sequence[News]) -> None:
    """Log reports on requests in quarantine, at most `MAX_NEWS` at a time. The log names a request by a hash, never by
    its content.
    """
    for told in news[:MAX_NEWS]:
        about: dict[str, object] = {"fingerprint": f"{told.request:016x}", "replicas": ",".join(told.replicas)}
        if told.caught:
            text = "a request is in quarantine for %.0f s: replicas broke off while they served it"
            QUARANTINE.warning(text, KEEP_S, extra={"fields": about})
        if told.refused:
            QUARANTINE.warning(
                "a request in quarantine was refused", extra={"fields": {**about, "times": told.refused}}
            )
    if len(news) > MAX_NEWS:
        QUARANTINE.warning("%d more requests in quarantine were refused since the last line", len(news) - MAX_NEWS)


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the line's fields, and the error if there was one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": in_utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """`2025-01-31T12:00:00.123Z INFO tailgate: message name=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{in_utc(record.created)} {record.levelname} {record.name}: {_plain(record.getMessage())}"
        line = " ".join([head, *(f"{name}={_shown(value)}" for name, value in _extra(record).items())])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _extra(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


def in_utc(at: float) -> str:
    """A Unix time as text, in UTC and to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: object) -> str:
    """A value in a text line. It is quoted if it is not one word."""
    if value is None:
        return "-"
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(" \"'=") else json.dumps(text)


def _plain(message: str) -> str:
    """A message on one line, with control characters escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)
