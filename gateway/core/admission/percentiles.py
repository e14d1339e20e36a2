"""Shares as constraints on the admissions of a tier: late first tokens for each TTFT percentile, and waits in vain.

An objective `p50: 500ms` promises that at least half of the tier's answers have their first token within 500 ms. The
constraint covers the answers of the last seconds, and the admitted requests without a first token:

    late answers + expected late answers <= (1 - quantile) x (answers + admitted)

A newcomer that is late with probability p adds p to the left side. The newcomer is admitted if the inequality still
holds. It is also admitted if p is within the allowance: such requests mend a broken promise, and refusing them would
not. So under overload the queue stays as short as the tightest percentile needs.

A request that waits and is refused has waited in vain, and to be refused at once is better. So the guard of the highest
percentile counts one that waited for `LONG_WAIT` of its bound as late, and allows `VAIN_AND_LATE` of the admitted.
Where no TTFT objective does that, `IN_VAIN` of the admitted may wait in vain, by the same sum over requests that left
the queue and those in it. Here p is the forecast's `in_vain`.

An objective below the highest percentile may be beyond what idle replicas can do: a new model is slower, or prompts
grew. To refuse for it would leave the fleet idle. So its guard counts, for all that arrive, the probability to be late
at an idle replica. While that exceeds what the objective allows, it bounds nothing: the highest percentile decides.

Forecasts over- or underestimate the tails. So p is multiplied by the events of the last minute over those forecast.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.policy import Objective

MEMORY_S: Final = 10.0
"""Events are forgotten exponentially over so long. A promise holds over any window with enough answers."""
BIAS_MEMORY_S: Final = 60.0
SAFETY: Final = 0.9
"""Share of the allowed late answers that is planned for. The rest is a margin for chance."""
IN_VAIN: Final = 0.02
"""Share of the admitted that may wait in vain, in tiers without a TTFT objective."""
LONG_WAIT: Final = 0.5
"""Part of the bound of the highest percentile, after which a refusal counts as late."""
VAIN_AND_LATE: Final = 0.01
"""Share of the admitted that the highest percentile allows to be late or to wait in vain, unless it allows more."""
PRIOR: Final = 1.0
"""Prior count of events that were forecast: the forecast is believed until events show otherwise."""
DOUBTED: Final = 0.1
"""Prior of events in the tails, as part of `PRIOR`: little is known of a tail before there are answers."""
MAX_BIAS: Final = 4.0


class ShareGuard:
    """Events and expected events among the requests of one tier, of which a share is allowed."""

    __slots__ = (
        "_admitted",
        "_alone",
        "_at",
        "_events",
        "_expected",
        "_foreseen",
        "_judged",
        "_offered",
        "_offered_at",
        "_prior",
        "_seen",
        "allowed",
        "highest",
        "objective",
    )

    def __init__(self, allowed: float, prior: float, objective: Objective | None = None, highest: bool = False) -> None:
        self.allowed = allowed
        """Share (0-1)."""
        self.highest = highest
        """Whether its objective is the highest TTFT percentile of the tier."""
        self.objective = objective
        """The TTFT objective that an event misses; None: an event is a wait in vain."""
        self._prior = prior
        self._judged = self._events = 0.0
        self._foreseen, self._seen = PRIOR, prior
        self._at = 0.0
        self._admitted = 0
        self._expected = 0.0
        self._offered = self._alone = self._offered_at = 0.0

    @property
    def open(self) -> int:
        """Requests that were admitted and are not judged yet."""
        return self._admitted

    @property
    def constraint(self) -> str:
        """The name of what it keeps, for people."""
        return "waits in vain" if self.objective is None else f"TTFT {self.objective.percentile}"

    def counts_wait(self, waited_s: float) -> bool:
        """Whether a refusal after this wait is late."""
        return self.highest and self.objective is not None and waited_s >= LONG_WAIT * self.objective.threshold_s

    def admits(self, p: float, now: float) -> bool:
        """Whether the share is kept with one more request, for which an event is forecast with probability `p`."""
        bias = min(MAX_BIAS, self._seen / self._foreseen)
        if bias * p <= self.allowed or self.is_beyond(bias):
            return True
        kept = math.exp((self._at - now) / MEMORY_S)
        count = kept * self._judged + self._admitted + 1.0
        return kept * self._events + bias * (self._expected + p) <= self.allowed * count

    def offered(self, alone: float, now: float) -> None:
        """A request arrived. An idle replica would be late with probability `alone` (0-1)."""
        kept = math.exp((self._offered_at - now) / BIAS_MEMORY_S)
        self._offered = kept * self._offered + 1.0
        self._alone = kept * self._alone + alone
        self._offered_at = now

    def is_beyond(self, bias: float = 1.0) -> bool:
        """Whether idle replicas would break the objective with what was offered. `bias` corrects their forecasts."""
        return SAFETY * bias * self._alone > self.allowed * self._offered

    def admitted(self, p: float) -> None:
        """A request with forecast `p` was admitted."""
        self._admitted += 1
        self._expected += p

    def dropped(self, p: float) -> None:
        """An admitted request with forecast `p` will never be judged."""
        self._admitted -= 1
        self._expected = self._expected - p if self._admitted else 0.0  # drops rounding errors when none is left

    def judged(self, p: float, event: bool, now: float) -> None:
        """Whether the event happened to an admitted request with forecast `p`."""
        self.dropped(p)
        one = 1.0 if event else 0.0
        kept = math.exp((self._at - now) / MEMORY_S)
        self._judged = kept * self._judged + 1.0
        self._events = kept * self._events + one
        kept = math.exp((self._at - now) / BIAS_MEMORY_S)
        self._foreseen = PRIOR + kept * (self._foreseen - PRIOR) + p
        self._seen = self._prior + kept * (self._seen - self._prior) + one
        self._at = now


def vain_guard() -> ShareGuard:
    """The guard of waits in vain."""
    return ShareGuard(IN_VAIN, PRIOR)


def ttft_guards(before: tuple[ShareGuard, ...], objectives: tuple[Objective, ...]) -> tuple[ShareGuard, ...]:
    """One guard for each TTFT objective of a tier. Guards of unchanged objectives keep their counts."""
    kept = {(guard.objective, guard.highest): guard for guard in before}
    last = max(objectives, key=lambda objective: objective.quantile)
    return tuple(
        kept.get((objective, objective is last)) or _guard(objective, objective is last) for objective in objectives
    )


def _guard(objective: Objective, highest: bool) -> ShareGuard:
    allowed = SAFETY * (1.0 - objective.quantile)
    if highest:
        return ShareGuard(max(allowed, VAIN_AND_LATE), DOUBTED * PRIOR, objective, highest)
    return ShareGuard(allowed, PRIOR, objective)
