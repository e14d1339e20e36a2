"""Reads a replica's answer to GET /v1/models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.fleet.fault import Failed, ReadFault
from gateway.wire.numbers import MAX_COUNT, count


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model of a replica. `max_model_len`: largest sum of prompt and output tokens; None if not given."""

    id: str
    max_model_len: int | None = None
    parent: str | None = None
    """For a LoRA adapter, the name of its base model, as the replica lists it; else None."""


class _Entry(msgspec.Struct):
    id: str
    max_model_len: int | float | None = None
    parent: str | None = None


class _Page(msgspec.Struct):
    data: list[_Entry]


_DECODER = msgspec.json.Decoder(_Page)
MAX_NAMES: Final = 4096
"""Longest list that is read. The answer to GET /v1/models is made of all lists at once. That takes some 3 us a name."""


def names_of(cards: Iterable[ModelCard]) -> frozenset[str]:
    """Names that a replica with these models takes; empty if any. Proxies list wildcards such as `*` or `openai/*`."""
    names = frozenset(card.id for card in cards)
    return frozenset() if any("*" in name for name in names) else names


def read_models(body: bytes) -> tuple[ModelCard, ...] | Failed:
    """The models in the order of the answer, each once. An adapter without a length gets that of its base model."""
    try:
        entries = _DECODER.decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Failed(ReadFault.GARBAGE, "the answer is not a list of models")
    if len(entries) > MAX_NAMES:
        return Failed(ReadFault.TOO_LARGE, f"the list has {len(entries)} models, more than {MAX_NAMES}")
    if any(entry.max_model_len is not None and not count(entry.max_model_len) for entry in entries):
        return Failed(ReadFault.GARBAGE, f"max_model_len is not a whole number from 1 to {MAX_COUNT}")
    if any(not entry.id for entry in entries):
        return Failed(ReadFault.GARBAGE, "a model has an empty id")
    if not entries:
        return Failed(ReadFault.EMPTY, "the list of models is empty")
    lengths = {entry.id: count(entry.max_model_len) for entry in entries}
    cards = {
        entry.id: ModelCard(entry.id, lengths[entry.id] or lengths.get(entry.parent or ""), entry.parent or None)
        for entry in entries
    }
    return tuple(cards.values())
