"""The sums of one file in one hour as bytes, which gateways tell each other."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from hashlib import blake2b
from typing import Annotated, Final

import msgspec

from gateway.observe.usage.database import UsageError
from gateway.observe.usage.metering import Cell, Sums

VERSION: Final = 1
MAX_BYTES: Final = 64 * 2**20
"""Longest text of an hour: that of some 500,000 kinds of requests."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0.0)]
_Sums = tuple[
    _Count, _Count, _Count, _Count, _Count, _Count, _Count | None, _Count, _Count | None, _Count, _Count, _Amount
]
"""The fields of `Sums` in their order. msgspec gets no dataclass, because compiled ones keep only some annotations."""
_Row = tuple[str, str, str, str, _Sums]
_Value = tuple[int, tuple[_Row, ...], tuple[tuple[str, _Amount], ...]]
Hour = tuple[list[tuple[Cell, Sums]], dict[tuple[int, str], float]]
"""The sums of one hour, and the seconds of replicas by hour and pool."""


def to_bytes(sums: Iterable[tuple[Cell, Sums]], fleet: Mapping[tuple[int, str], float]) -> bytes:
    """The sums and the seconds of replicas of one hour."""
    rows = [(*cell[1:], astuple(each)) for cell, each in sums]
    pools = [(pool, replica_s) for (_, pool), replica_s in fleet.items()]
    return zlib.compress(msgspec.json.encode((VERSION, rows, pools)))


def from_bytes(value: bytes, hour: int) -> Hour:
    """The sums in a value of this hour. Raises UsageError for bytes that no gateway of this version has written."""
    try:
        text = zlib.decompressobj().decompress(value, MAX_BYTES)
        version, rows, pools = msgspec.json.decode(text, type=_Value)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise UsageError(f"it cannot be read: {error}") from None
    if version != VERSION:
        raise UsageError(f"it has version {version}, this gateway reads {VERSION}")
    sums = [((hour, tenant, key, tier, model), Sums(*each)) for tenant, key, tier, model, each in rows]
    return sums, {(hour, pool): replica_s for pool, replica_s in pools}


def digest(value: bytes) -> str:
    """Tells values apart."""
    return blake2b(value, digest_size=8).hexdigest()
