"""A policy as bytes, for another process of this gateway. Unlike a journal, they have its keys."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gateway.core.policy import Policy
from gateway.core.slo import Slo


def _made(kind: Callable[..., object], values: Mapping[str, object]) -> object:
    return kind(**values)


class _Pickler(pickle.Pickler):
    """Writes dataclasses by the arguments that make them, because compiled frozen ones cannot be filled in later."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, type) or not is_dataclass(value):
            return NotImplemented
        kept = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return _made, (type(value), kept)


def to_bytes(value: Policy | Slo) -> bytes:
    """A policy or objectives as bytes. Those of a policy contain secrets: for a private socket only."""
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def policy_from_bytes(data: bytes) -> Policy:
    """The policy of these bytes, which must come from a process of this gateway."""
    policy = pickle.loads(data)
    assert isinstance(policy, Policy)
    return policy


def slo_from_bytes(data: bytes) -> Slo:
    """The objectives of these bytes, which must come from a process of this gateway."""
    slo = pickle.loads(data)
    assert isinstance(slo, Slo)
    return slo
