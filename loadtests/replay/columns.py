"""Outcomes of requests, as rows of fixed size in `requests.npy`: written as they end, so memory stays bounded.

The file is an ordinary NumPy array of records (`numpy.load`), one row for each request, in the order in which they
ended. Names of tiers, reasons and replicas are numbers in the rows; `run.json` has the tables, and everything except
the rows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from loadtests.quantiles import place
from loadtests.replay.gaps import Gaps
from loadtests.replay.request import Outcome, Request
from loadtests.replay.written import Written

FILE = "requests.npy"
FLUSH_ROWS = 2048
MAX_NAMES = 1000
OTHERS = "others"

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("due_s", "<f8", "d"),
    ("number", "<u4", "I"),
    ("late_s", "<f4", "f"),
    ("ttft_s", "<f4", "f"),
    ("tpot_s", "<f4", "f"),
    ("e2e_s", "<f4", "f"),
    ("queue_s", "<f4", "f"),
    ("longest_gap_s", "<f4", "f"),
    ("retry_after_s", "<f4", "f"),
    ("prompt_cached", "<f4", "f"),
    ("prompt_tokens", "<u4", "I"),
    ("prompt_counted", "<u4", "I"),
    ("output_wanted", "<u4", "I"),
    ("output_tokens", "<u4", "I"),
    ("chunks", "<u4", "I"),
    ("status", "<u2", "H"),
    ("reason", "<u2", "H"),
    ("replica", "<u2", "H"),
    ("tier", "<u2", "H"),
    ("served_tier", "<u2", "H"),
    ("outcome", "u1", "B"),
    ("tries", "u1", "B"),
    ("streamed", "u1", "B"),
    ("turn", "u1", "B"),
)
"""Columns: name, NumPy's type, type of `struct`. A missing value is NaN or 0."""
DTYPE = np.dtype([(name, kind) for name, kind, _ in COLUMNS])
Column = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Chosen = Mask | npt.NDArray[np.intp] | slice
_ROW = struct.Struct("<" + "".join(code for _, _, code in COLUMNS))
assert _ROW.size == DTYPE.itemsize
_NAN = math.nan


class Names:
    """Numbers for names; 0 is no name. Names beyond MAX_NAMES are counted as `others`, since a target may invent
    names."""

    def __init__(self) -> None:
        self.names = [""]
        self._numbers = {"": 0}

    def known(self, name: str) -> str:
        """The name itself, or `others`."""
        return self.names[self.number(name)]

    def number(self, name: str) -> int:
        """The number of a name."""
        found = self._numbers.get(name)
        if found is None:
            if len(self.names) > MAX_NAMES:
                name = OTHERS
            if name not in self._numbers:
                self._numbers[name] = len(self.names)
                self.names.append(name)
            found = self._numbers[name]
        return found


class Columns:
    """A recorder that writes rows to `folder`. It must be closed: before that the file claims to be empty."""

    def __init__(self, folder: Path, warmup_s: float = 0.0) -> None:
        self.rows = 0
        self._warmup_s = warmup_s
        self.tiers, self.reasons, self.replicas = Names(), Names(), Names()
        self.messages: dict[str, str] = {}
        """The first words of the target about each reason."""
        self.gaps: dict[str, Gaps] = {}
        """ITL by tier, only of requests due after the warm-up: they cannot be separated from others in a histogram
        later.
        """
        self._file = (folder / FILE).open("wb+")
        self._buffer = bytearray()
        self._head()

    def gap(self, request: Request, gap_s: float, count: int) -> None:
        """Pieces of content arrived."""
        if request.arrival.at < self._warmup_s:
            return
        gaps = self.gaps.get(request.arrival.tier)
        if gaps is None:
            gaps = self.gaps.setdefault(self.tiers.known(request.arrival.tier), Gaps())
        gaps.add(gap_s, count)

    def ended(self, request: Request) -> None:
        """Write the row of a request."""
        if request.message and request.outcome is not Outcome.FINISHED:
            self.messages.setdefault(self.reasons.known(request.reason), request.message)
        self._buffer += _ROW.pack(*self._row(request))
        self.rows += 1
        if self.rows % FLUSH_ROWS == 0:
            self._flush()

    def close(self) -> None:
        """Write the remaining rows, and their number."""
        self._flush()
        self._file.seek(0)
        self._head()
        self._file.close()

    def _flush(self) -> None:
        self._file.write(self._buffer)
        self._buffer.clear()

    def _head(self) -> None:
        # NumPy leaves room in the header for a longer number of rows, so that it can be rewritten.
        head = {"shape": (self.rows,), "fortran_order": False, "descr": np.lib.format.dtype_to_descr(DTYPE)}
        np.lib.format.write_array_header_1_0(self._file, head)

    def _row(self, request: Request) -> tuple[float, ...]:
        arrival, due_s = request.arrival, request.arrival.at
        first_s, tokens = request.first_s, request.tokens
        return (
            due_s,
            request.number,
            request.late_s,
            _NAN if first_s is None else first_s - due_s,
            _NAN if first_s is None or tokens < 2 else (request.last_s - first_s) / (tokens - 1),
            request.ended_s - due_s,
            _NAN if request.queue_s is None else request.queue_s,
            request.longest_gap_s,
            _NAN if request.retry_after_s is None else request.retry_after_s,
            _NAN if request.cached_tokens is None else request.cached_tokens,
            arrival.prompt_tokens,
            request.prompt_tokens or 0,
            arrival.output_tokens,
            tokens,
            request.chunks,
            request.status,
            self.reasons.number(request.reason if request.outcome is not Outcome.FINISHED else ""),
            self.replicas.number(request.replica),
            self.tiers.number(arrival.tier),
            self.tiers.number(request.served_tier),
            request.outcome,
            min(request.tries, 255),
            arrival.stream,
            min(arrival.turn, 255) if isinstance(arrival, Written) else 1,
        )


class Rows:
    """Rows as columns, each made when it is first asked for: `rows["ttft_s"]`; `rows[mask]` is a selection.

    Several threads may read at once: at worst a column is made twice.
    """

    def __init__(self, whole: npt.NDArray[np.void] | Rows, chosen: Chosen) -> None:
        self._whole = whole
        # Indexes take a tenth of the time of a mask, for each column.
        self._chosen = chosen if isinstance(chosen, slice) or chosen.dtype != np.bool_ else np.flatnonzero(chosen)
        self._columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self["due_s"])

    @overload
    def __getitem__(self, key: str) -> Column: ...

    @overload
    def __getitem__(self, key: Chosen) -> Rows: ...

    def __getitem__(self, key: str | Chosen) -> Column | Rows:
        if not isinstance(key, str):
            return Rows(self, key)
        if key not in self._columns:
            self._columns[key] = self._whole[key][self._chosen]
        return self._columns[key]


def read_rows(folder: Path) -> Rows:
    """All rows, sorted by the time at which they were due, then by number. Raises OSError or ValueError."""
    records = read_records(folder)
    return Rows(records, np.lexsort((records["number"], records["due_s"])))


def read_records(folder: Path) -> npt.NDArray[np.void]:
    """All rows in the order in which they were written. Raises OSError or ValueError."""
    file = folder / FILE
    try:
        # Mapped, since only columns are kept in memory. Pickles are not allowed, so no other format is read.
        records: npt.NDArray[np.void] = np.lib.format.open_memmap(file, mode="r")
    except ValueError:
        raise ValueError(f"{file}: is not a file of a load test, or not a complete one") from None
    if records.dtype != DTYPE:
        raise ValueError(f"{file}: was written by another version of the load tester")
    return records


def percentiles(values: npt.NDArray[np.floating], shares: Sequence[float]) -> list[float | None]:
    """Quantiles by nearest rank, so each is a value that occurred. NaN is left out."""
    known = values[~np.isnan(values)]
    if not len(known):
        return [None] * len(shares)
    # This takes a third of the time of a full sort.
    places = np.array([place(len(known), share) for share in shares], np.intp)
    return [float(value) for value in np.partition(known, places)[places]]
