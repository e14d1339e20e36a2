"""Reads a journal and repeats its calls on a new controller. The answers must be the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import orjson

from gateway.core.journal.codec import Unreadable
from gateway.core.journal.recorder import FORMAT, Replay


class NotReplayable(Exception):
    """The file is not a journal, or cannot be replayed. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a journal file. `about`: the whole line."""

    path: Path
    run: str
    part: int
    version: str
    about: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first call whose answer differs, and both answers as plain data."""

    file: str
    line: int
    now: float
    call: str
    arguments: object
    recorded: object
    replayed: object


@dataclass(slots=True)
class Replayed:
    """Result of a replay, with counts."""

    calls: int = 0
    """Number of calls with equal answers."""
    requests: int = 0
    began_at: float | None = None
    ended_at: float | None = None
    """`now` of the first call and of the last call."""
    divergence: Divergence | None = None
    stopped: str = ""
    """Why the replay stopped before the end; empty if it reached the end."""
    cut: bool = False
    """Whether the last line is cut off, because the process was killed."""

    def alike(self, call: str, now: float) -> None:
        """Count a call with an equal answer."""
        self.calls += 1
        self.requests += call == "arrive"
        self.began_at = now if self.began_at is None else self.began_at
        self.ended_at = now


@dataclass(frozen=True, slots=True)
class Line:
    """One line after the header, with its length in bytes."""

    file: str
    number: int
    size: int
    row: object
    """The parsed line; None if it is cut off."""


def header(path: Path) -> Header:
    """The first line of a file. Raises `NotReplayable` or OSError."""
    match _first(path):
        case {"journal": form, "version": version} if form != FORMAT:
            raise NotReplayable(
                f"{path} is a journal in format {form}, of tailgate {version}: this one reads format {FORMAT}"
            )
        case {"journal": _, "run": str(run), "part": int(part), "version": str(version)} as about:
            return Header(path, run, part, version, about)
    raise NotReplayable(f"{path} is not a journal: its first line is not a journal's header")


def is_journal(path: Path) -> bool:
    """Whether the first line of a file is that of a journal, in any format. Raises OSError."""
    return "journal" in _first(path)


def _first(path: Path) -> dict[str, object]:
    """The JSON object in the first line of a file; empty if there is none."""
    with path.open("rb") as file:
        try:
            found = orjson.loads(file.readline())
        except orjson.JSONDecodeError:
            return {}
    return found if isinstance(found, dict) else {}


def in_order(paths: Sequence[Path]) -> list[Header]:
    """The headers of the files of one run, in order. Raises `NotReplayable` or OSError."""
    parts = sorted((header(path) for path in paths), key=lambda part: part.part)
    if len({part.run for part in parts}) > 1:
        runs = ", ".join(f"{part.path}: {part.run}" for part in parts)
        raise NotReplayable(f"these files are from different runs of the process; give the parts of one ({runs})")
    for expected, part in enumerate(parts, start=1):
        if part.part != expected:
            raise NotReplayable(
                f"{part.path} begins in the middle: it is part {part.part} of its run, and what the controller knew by "
                f"then is not in it. Part {expected} is needed too, which is {_earlier(part, expected)} unless it was "
                "renamed; if that was deleted (TAILGATE_JOURNAL_FILES are kept), this run cannot be replayed"
            )
    return parts


def _earlier(part: Header, number: int) -> Path:
    """The path of an earlier file of the run of `part`. FILE.2 was written before FILE.1, and FILE.1 before FILE."""
    name, suffix = part.path.name, part.path.suffix[1:]
    base, age = (name.removesuffix(f".{suffix}"), int(suffix)) if suffix.isdecimal() else (name, 0)
    return part.path.with_name(f"{base}.{age + part.part - number}")


def replay(parts: Sequence[Header], progress: Callable[[int], None]) -> Replayed:
    """Repeat the calls of these files on a new controller. `progress`: called with the number of bytes of each line.

    Raises `NotReplayable` or OSError.
    """
    done, where = Replayed(), f"{parts[0].path}:1"
    try:
        fresh = Replay(parts[0].about, Random)
        for line in lines(parts):
            where = f"{line.file}:{line.number}"
            if not _take(line, fresh, done):
                break
            progress(line.size)
    except Unreadable as error:
        raise NotReplayable(f"{where}: {error} (written by tailgate {parts[0].version})") from error
    return done


def _take(line: Line, fresh: Replay, done: Replayed) -> bool:
    """Process one line. Returns False if the replay cannot go on."""
    match line.row:
        case {"let": name, "be": value}:
            fresh.let({"let": name, "be": value})
        case {"gap": int(missing)}:
            done.stopped = f"{missing} calls are missing at {line.file}:{line.number}: the rest cannot be replayed"
        case [int() | float() as now, str(call), list(arguments), recorded]:
            replayed = orjson.loads(orjson.dumps(fresh.answer([now, call, arguments, recorded])))
            # In this comparison, 1 equals 1.0. That matters, because a compiled core turns some integers into floats.
            if replayed == recorded:
                done.alike(call, now)
            else:
                done.divergence = Divergence(line.file, line.number, now, call, arguments, recorded, replayed)
        case None:
            done.cut = True
        case _:
            raise Unreadable("a line is neither a call nor a known object of a journal")
    return not (done.stopped or done.divergence)


def lines(parts: Sequence[Header]) -> Iterator[Line]:
    """All lines except the headers. Only the last line may be cut off."""
    for part in parts:
        with part.path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if number == 1:
                    continue
                try:
                    row = orjson.loads(text)
                except orjson.JSONDecodeError as error:
                    if text.endswith(b"\n") or part is not parts[-1]:
                        raise NotReplayable(f"{part.path}:{number}: this is not JSON: {error}") from error
                    row = None
                yield Line(str(part.path), number, len(text), row)
