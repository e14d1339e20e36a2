"""Recorded series as a test for promtool: phases of an incident, each played as often as a test wants."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.deployment.files import Document, read_yaml
from tests.deployment.record import AFTER_S, ALERTS, BEFORE_S, DURING_S, SERIES, STEP_S

FIRING = 'count by (alertname, severity) (ALERTS{alertstate="firing"})'
Row = list[float | None]


@dataclass(frozen=True, slots=True)
class Play:
    """How often each recorded phase is played. An hour before the incident is sixty times its recorded minute.

    `calm`: how often that minute is played again at the end, after the recorded recovery.
    """

    before: int = 1
    during: int = 1
    calm: int = 0

    @property
    def begins_s(self) -> int:
        """Start of the incident."""
        return self.before * BEFORE_S

    @property
    def ends_s(self) -> int:
        """End of the incident."""
        return self.begins_s + self.during * DURING_S

    @property
    def over_s(self) -> int:
        """End of the play."""
        return self.ends_s + AFTER_S + self.calm * BEFORE_S


ONCE = Play()


@dataclass(slots=True)
class Expected:
    """Alerts by name and severity, with their number, at times in seconds."""

    incident: str
    play: Play
    firing: dict[int, Mapping[tuple[str, str], int]] = field(default_factory=dict)

    def at(self, time_s: int, *alerts: tuple[str, str]) -> Expected:
        """These alerts fire at that time, and no others."""
        self.firing[time_s] = Counter(alerts)
        return self

    def never(self, first_s: int, last_s: int) -> Expected:
        """No alert fires in between."""
        for time_s in range(first_s, last_s + 1, 60):
            self.at(time_s)
        return self

    def document(self) -> Document:
        """The input of `promtool test rules`."""
        recorded = read_yaml(SERIES / f"{self.incident}.yaml")["input_series"]
        return {
            "rule_files": [str(ALERTS)],
            "evaluation_interval": "30s",
            "tests": [
                {
                    "interval": f"{STEP_S}s",
                    "input_series": [_played(one["series"], str(one["values"]), self.play) for one in recorded],
                    "promql_expr_test": [
                        {
                            "expr": FIRING,
                            "eval_time": f"{time_s}s",
                            "exp_samples": [
                                {"labels": f'{{alertname="{name}",severity="{severity}"}}', "value": count}
                                for (name, severity), count in alerts.items()
                            ],
                        }
                        for time_s, alerts in self.firing.items()
                    ],
                }
            ],
        }

    def write(self, path: Path) -> Path:
        """Write the document. JSON is YAML."""
        path.write_text(json.dumps(self.document()))
        return path


def values_of(notation: str) -> Row:
    """The values of promtool's notation, as `record.compact` writes it."""
    row: Row = []
    for word in notation.split():
        value, _, more = word.partition("x")
        number = None if value == "_" else math.inf if value == "Inf" else float(value)
        count = 1 if not more else int(more) if value == "_" else int(more) + 1
        row += [number] * count
    return row


def _played(series: str, notation: str, play: Play) -> dict[str, str]:
    row = values_of(notation)
    first, second = BEFORE_S // STEP_S, (BEFORE_S + DURING_S) // STEP_S
    phases = [(0, first, play.before), (first, second, play.during), (second, len(row), 1), (0, first, play.calm)]
    if series.partition("{")[0].endswith("_total"):
        row = [0.0 if value is None else value for value in row]
        rises = [0.0] + [_rise(one, next_one) for one, next_one in pairwise(row)]
        return {"series": series, "values": _written(_summed(_repeated(rises, phases)))}
    return {"series": series, "values": _written(_repeated(row, phases))}


def _rise(one: float | None, next_one: float | None) -> float:
    return (next_one or 0.0) - (one or 0.0)


def _repeated(row: Sequence[float | None], phases: Sequence[tuple[int, int, int]]) -> Row:
    return [value for start, end, times in phases for _ in range(times) for value in row[start:end]]


def _summed(rises: Row) -> Row:
    total, found = 0.0, []
    for rise in rises:
        total += rise or 0.0
        found.append(total)
    return [*found]


def _written(row: Row) -> str:
    return " ".join("_" if value is None else "Inf" if value == math.inf else f"{value:.10g}" for value in row)
