"""Writers of each trace format, and the fields that each cannot hold."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO

from gateway.sim.workload.trace_formats import TraceRow

EPOCH = datetime(2000, 1, 1)
"""Beginning of a trace whose format needs a date."""
OPTIONAL = ("tier", "tenant", "model", "stream", "max_tokens", "session", "prefix")
_UNSAID = {
    "tier": None,
    "tenant": None,
    "model": None,
    "stream": True,
    "max_tokens": None,
    "session": None,
    "prefix": (),
}


@dataclass(frozen=True, slots=True)
class Writer:
    """A format for output."""

    carries: tuple[str, ...]
    """Optional fields of a row that the format can hold."""
    open: Callable[[IO[str]], Callable[[TraceRow], None]]
    """Writes the header, and returns a function that writes a row."""
    tick_s: float = 0.0
    """The finest time that it can hold, in seconds."""

    def lacks(self, row: TraceRow) -> list[str]:
        """Fields of this row that the format cannot hold."""
        return [name for name in OPTIONAL if name not in self.carries and getattr(row, name) != _UNSAID[name]]


def _own(out: IO[str]) -> Callable[[TraceRow], None]:
    def write(row: TraceRow) -> None:
        said: dict[str, object] = {"at": round(row.at, 6), "prompt_tokens": row.prompt_tokens}
        said["output_tokens"] = row.output_tokens
        said |= {name: value for name in OPTIONAL if (value := getattr(row, name)) != _UNSAID[name]}
        out.write(json.dumps(said, separators=(",", ":"), ensure_ascii=False) + "\n")

    return write


def _azure(out: IO[str]) -> Callable[[TraceRow], None]:
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])

    def write(row: TraceRow) -> None:
        at = (EPOCH + timedelta(seconds=row.at)).isoformat(sep=" ", timespec="microseconds")
        rows.writerow([f"{at}0", row.prompt_tokens, row.output_tokens])

    return write


def _burstgpt(out: IO[str]) -> Callable[[TraceRow], None]:
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"])

    def write(row: TraceRow) -> None:
        total = row.prompt_tokens + row.output_tokens
        kind = "API log" if row.session is None else "Conversation log"
        rows.writerow([int(row.at), row.model or "", row.prompt_tokens, row.output_tokens, total, kind])

    return write


def _mooncake(out: IO[str]) -> Callable[[TraceRow], None]:
    def write(row: TraceRow) -> None:
        said = {
            "timestamp": round(row.at * 1000),
            "input_length": row.prompt_tokens,
            "output_length": row.output_tokens,
            "hash_ids": list(row.prefix),
        }
        out.write(json.dumps(said) + "\n")

    return write


WRITERS: dict[str, Writer] = {
    "tailgate": Writer(OPTIONAL, _own),
    "azure": Writer((), _azure),
    "burstgpt": Writer(("model",), _burstgpt, tick_s=1.0),
    "mooncake": Writer(("prefix",), _mooncake, tick_s=0.001),
}
