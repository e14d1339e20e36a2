"""Reads a replica's answer to GET /v1/models."""

from __future__ import annotations

from dataclasses import dataclass

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


def read_models(body: bytes) -> tuple[ModelCard, ...] | Failed:
    """The models in the order of the answer, each once. An adapter without a length gets that of its base model."""
    try:
        entries = _DECODER.decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Failed(ReadFault.GARBAGE, "the answer is not a list of models")
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
