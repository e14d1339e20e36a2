"""Results of one measure: raw figures of every round, and one value per target and round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import cast

Raw = dict[str, object]
"""The figures that one load printed, parsed from JSON."""


def number(raw: Raw, name: str) -> float:
    """A figure of a load."""
    return float(cast(float, raw[name]))


def errors_of(raw: Raw) -> list[str]:
    """Errors of a load; any of them makes it void."""
    return cast(list[str], raw["errors"])


@dataclass(slots=True)
class Section:
    """One measure. `values`: by target, one value per round; all targets have the same rounds."""

    name: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)
    rounds: list[dict[str, Raw]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)

    def begin_round(self) -> None:
        """Begin a new round, to which the next results belong."""
        self.rounds.append({})

    def take(self, target: str, raw: Raw, value: Callable[[Raw], float]) -> None:
        """Keep a result of this round. A result with errors makes the whole target void."""
        self.rounds[-1][target] = raw
        if errors := errors_of(raw):
            self.errors.setdefault(target, []).extend(errors)
            self.values.pop(target, None)
        elif target not in self.errors:
            self.values.setdefault(target, []).append(value(raw))

    def typical(self, target: str) -> float | None:
        """The median over rounds, None if the target was not measured."""
        values = self.values.get(target)
        return median(values) if values else None
