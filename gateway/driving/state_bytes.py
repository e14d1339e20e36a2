"""Learned facts of a gateway, as bytes for its successor.

{"tailgate_state": 1, "sha256": ..., "written_unix_s": ...}      the header; checksum of all other lines.
{"memory": {...}}                                                `Controller.memory`
{"replicas": {name: {...}, ...}}                                 `Controller.memory_of`, perhaps in several lines
{"absent": {name: {...}, ...}}                                   `AbsentReplicas.facts`
{"responses": [[...], ...]}                                      stored responses, likewise
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import orjson

from gateway.core.estimators.memory import NOTHING, objects_in

FORMAT: Final = 1
BATCH: Final = 100
"""Replicas, or stored responses, that are read in one turn of the loop: one or two milliseconds."""
_KIND: Final = "tailgate_state"
T = TypeVar("T")


class UnreadableStateError(Exception):
    """The bytes are damaged, or of something else. The message says which, after the name of their source."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """State as it was read. `written_unix_s`: time of the last write, by the wall clock."""

    memory: Mapping[str, object]
    responses: tuple[Sequence[object], ...]
    written_unix_s: float


def line_of(part: str, value: object) -> bytes:
    """One line of the state. `part`: its only key."""
    return orjson.dumps({part: value}, option=orjson.OPT_APPEND_NEWLINE)


def with_header(lines: bytes, written_unix_s: float) -> bytes:
    """Complete bytes of these lines."""
    header = {_KIND: FORMAT, "sha256": hashlib.sha256(lines).hexdigest(), "written_unix_s": written_unix_s}
    return orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE) + lines


def state_from_bytes(data: bytes) -> SavedState:
    """Read complete bytes. Raises `UnreadableStateError`."""
    first, _, lines = data.partition(b"\n")
    try:
        header = objects_in(orjson.loads(first))
    except orjson.JSONDecodeError:
        header = NOTHING
    if _KIND not in header:
        raise UnreadableStateError("is not a file of tailgate's state")
    if header[_KIND] != FORMAT:
        raise UnreadableStateError(f"has format {header[_KIND]!r}, and this version reads {FORMAT}")
    written_unix_s = header.get("written_unix_s")
    if not isinstance(written_unix_s, float) or header.get("sha256") != hashlib.sha256(lines).hexdigest():
        raise UnreadableStateError("is damaged: its checksum is that of another content")
    return _read(map(orjson.loads, lines.splitlines()), written_unix_s)


def in_tuples(data: object) -> object:
    """Plain data with tuples for lists, as calls of the controller are recorded."""
    if isinstance(data, list):
        return tuple([in_tuples(item) for item in data])
    return {name: in_tuples(item) for name, item in data.items()} if isinstance(data, dict) else data


def _read(parts: Iterable[object], written_unix_s: float) -> SavedState:
    memory: Mapping[str, object] = NOTHING
    replicas: dict[str, object] = {}
    absent: dict[str, object] = {}
    responses: list[Sequence[object]] = []
    for part in parts:
        match part:
            case {"memory": dict(found)}:
                memory = objects_in(in_tuples(found))
            case {"replicas": dict(found)}:
                replicas.update(objects_in(in_tuples(found)))
            case {"absent": dict(found)}:
                absent.update(objects_in(in_tuples(found)))
            case {"responses": list(rows)}:
                responses += rows
    return SavedState({**memory, "replicas": replicas, "absent": absent}, tuple(responses), written_unix_s)


async def lines_in_turns(kind: str, values: Iterable[object]) -> list[bytes]:
    """A line for each of these values, which may be made as they are read. Requests are served in between."""
    lines = []
    for value in values:
        lines.append(line_of(kind, value))
        await asyncio.sleep(0)
    return lines


def batched(items: Iterable[T]) -> Iterator[list[T]]:
    """Lists of at most `BATCH` items."""
    left = iter(items)
    while found := list(islice(left, BATCH)):
        yield found
