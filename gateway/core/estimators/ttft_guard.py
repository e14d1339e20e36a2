"""Limits the share of a tier's requests that are late, for each TTFT percentile, and the share that wait in vain.

An objective `p50: 500ms` promises that at least half of the tier's answers have their first token within 500 ms. A
guard keeps this inequality, over the answers of the last seconds and the admitted requests that have no first token
yet:

    late answers + expected late answers <= (1 - quantile) x (answers + admitted)

A new request that is late with probability p adds p to the left side and 1 to the right count. It is admitted if the
inequality still holds. It is also admitted if p <= 1 - quantile: admitting such requests repairs a broken percentile,
refusing them does not. So under overload the queue stays as short as the tightest percentile needs.

Under lasting overload many requests would wait. Waiting requests wait for the same replicas, so they are late together.
The late answers that are still allowed would all be used up by one queue that is late as a whole. So the guard of the
highest percentile then uses the inequality only for requests that are sent at once. Others need p <= `allowed`. Here p
is the probability to be later than a part of the bound, corrected as for the whole bound. In the lowest tier this part
falls from 1 to `MIN_PART` as more requests wait. If few would wait, the queue is only a burst that ends. Refusing it
would lose requests although the load is far below the capacity.

A request that is refused after a wait has waited in vain; a refusal at once is better. So the guard of the highest
percentile also counts a refusal after `LONG_WAIT` of its bound as late. It allows at least `VAIN_AND_LATE`. A request
without a TTFT guard has a guard against waits in vain instead, which allows `IN_VAIN`. This guard counts the requests
that left the queue and those still in it. Its p is the forecast's `in_vain`.

An objective below the highest percentile may be out of reach even for idle replicas, because a new model is slower or
prompts grew. Refusing requests for its sake would leave the fleet idle. So its guard also averages, over all arrivals,
the probability to be late at an idle replica. While the average exceeds the allowed share, this guard admits
everything, and the highest percentile decides.

Forecasts over- or underestimate the tails. So p is multiplied by (events seen / events forecast) of the last minute.
Busy replicas teach this factor, and the spread of latencies. Because of both, requests would be refused while replicas
are nearly idle, where refusing makes no other request faster. So a request is also admitted if p is at most
`NEARLY_IDLE` times that of an idle replica, and at most `UNLIKELY`.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.rates import Rate
from gateway.core.slo import Objective

MEMORY_S: Final = 10.0
"""Time constant (seconds) of forgetting. It is short, so that an objective holds in every window with enough answers.
"""
BIAS_MEMORY_S: Final = 60.0
SAFETY: Final = 0.9
"""Admissions use up this share of the allowed late answers. The rest is a margin for chance."""
IN_VAIN: Final = 0.02
"""Share (0-1) of the admitted requests that may wait in vain, if no TTFT guard covers them."""
LONG_WAIT: Final = 0.5
"""A refusal counts as late after this part of the bound of the highest percentile."""
VAIN_AND_LATE: Final = 0.01
"""The guard of the highest percentile allows at least this share of the admitted requests to be late or wait in vain.
"""
PRIOR: Final = 1.0
"""Prior count of events, both forecast and seen: the forecast is believed until events show otherwise."""
DOUBTED: Final = 0.5
"""The guard of the highest percentile multiplies forecasts by this at first, because tails are unknown before there are
answers. Measured in overload: with .1, at least .83 of the refusals come at once; with .5, at least .93.
"""
MAX_BIAS: Final = 4.0
NEARLY_IDLE: Final = 1.5
"""See above. In the 20 s after an overload with code, on a 70B model with costs disturbed by 60%, .91 are good with it,
and .76 without. Without disturbance it changes little.
"""
UNLIKELY: Final = 0.05
"""See above. Without this bound, long prompts are admitted in any overload. Then three tiers on that model at 2x have
.438 good instead of .461.
"""
WAITING: Final = 0.2
"""The overload lasts while more than this share of the requests of the last `MEMORY_S` would wait."""
WAITING_ABOVE: Final = 0.5
"""The same share, for a tier above others that use the pool. Its requests often wait a little for those of the others,
without any overload of its own.
"""
ALL_WAIT: Final = 0.6
MIN_PART: Final = 0.7
"""The part of the bound falls from 1 to `MIN_PART` while the share of waiting requests rises from `WAITING` to
`ALL_WAIT`, in the lowest tier. Measured on 18 overloads: fewer late refusals than with the whole bound, and the same
goodput.
"""
FEW: Final = 16.0
"""The share is computed as if this many more requests did not wait: a few that wait show no lasting overload."""


class ShareGuard:
    """Holds the share of a tier's requests that suffer an event: a late first token, or a wait in vain."""

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
    )

    def __init__(self, allowed: float, prior: float) -> None:
        self.allowed = allowed
        """Allowed share (0-1) of requests with an event."""
        self._prior = prior
        self._judged = self._events = 0.0
        self._foreseen, self._seen = PRIOR, prior
        self._at = 0.0
        self._admitted = 0
        self._expected = 0.0
        self._offered = self._alone = self._offered_at = 0.0

    @property
    def open(self) -> int:
        """Number of admitted requests that are not judged yet."""
        return self._admitted

    @property
    def constraint(self) -> str:
        """Name of the guarded share, for texts."""
        return "waits in vain"

    def admits(self, p: float, now: float, saved: bool = True) -> bool:
        """Whether one more request may be admitted. `p` (0-1): forecast probability that it suffers an event. `saved`:
        whether it may use up events that earlier requests were allowed but did not suffer.
        """
        bias = self._bias
        if bias * p <= self.allowed or self.is_beyond(bias):
            return True
        if not saved:
            return False
        kept = math.exp((self._at - now) / MEMORY_S)
        count = kept * self._judged + self._admitted + 1.0
        return kept * self._events + bias * (self._expected + p) <= self.allowed * count

    @property
    def _bias(self) -> float:
        return min(MAX_BIAS, self._seen / self._foreseen)

    def corrected(self, p: float) -> float:
        """The forecast probability `p` (0-1), corrected by the events of the last minute."""
        return min(1.0, self._bias * p)

    def offered(self, alone: float, now: float) -> None:
        """Count an arrival. `alone` (0-1): probability that an idle replica would be late for it."""
        kept = math.exp((self._offered_at - now) / BIAS_MEMORY_S)
        self._offered = kept * self._offered + 1.0
        self._alone = kept * self._alone + alone
        self._offered_at = now

    def is_beyond(self, bias: float = 1.0) -> bool:
        """Whether even idle replicas would break the objective under the offered requests. Their forecasts are
        multiplied by `bias`.
        """
        return SAFETY * bias * self._alone > self.allowed * self._offered

    def admitted(self, p: float) -> None:
        """Count an admitted request. `p` (0-1): forecast probability of an event."""
        self._admitted += 1
        self._expected += p

    def dropped(self, p: float) -> None:
        """Remove an admitted request from the counts, without an outcome."""
        self._admitted -= 1
        # 0 when no request is left, so rounding errors do not add up
        self._expected = self._expected - p if self._admitted else 0.0

    def judged(self, p: float, event: bool, now: float, had_costs: bool = True) -> None:
        """Count the outcome of an admitted request: whether the event, forecast with probability `p`, happened.

        `had_costs`: whether costs were known at admission. Without them the outcome says nothing about later forecasts.
        """
        self.dropped(p)
        one = 1.0 if event else 0.0
        kept = math.exp((self._at - now) / MEMORY_S)
        self._judged = kept * self._judged + 1.0
        self._events = kept * self._events + one
        kept = math.exp((self._at - now) / BIAS_MEMORY_S)
        self._foreseen = PRIOR + kept * (self._foreseen - PRIOR) + (p if had_costs else 0.0)
        self._seen = self._prior + kept * (self._seen - self._prior) + (one if had_costs else 0.0)
        self._at = now


class TtftGuard(ShareGuard):
    """Guard of a TTFT objective: an event is an answer that misses it."""

    __slots__ = ("_asked", "_waiting", "highest", "objective")

    def __init__(self, objective: Objective, highest: bool) -> None:
        allowed = SAFETY * (1.0 - objective.quantile)
        if highest:
            super().__init__(max(allowed, VAIN_AND_LATE), DOUBTED * PRIOR)
        else:
            super().__init__(allowed, PRIOR)
        self._asked, self._waiting = Rate(MEMORY_S), Rate(MEMORY_S)
        """Arrivals, and the arrivals that would wait."""
        self.objective = objective
        self.highest = highest
        """Whether its objective is the highest TTFT percentile of the tier."""

    @property
    def constraint(self) -> str:
        """Name of its objective, for texts."""
        return f"TTFT {self.objective.percentile}"

    def asked(self, waits: bool, now: float) -> None:
        """Count an arrival. `waits`: whether it would wait in the gateway."""
        self._asked.add(now)
        self._waiting.add(now, 1.0 if waits else 0.0)  # 0.0 too: both counts end at this arrival

    def waiting_share(self, now: float) -> float:
        """The share (0-1) of the recent arrivals that would wait. `FEW` more count as if they did not."""
        return self._waiting.per_s(now) / (self._asked.per_s(now) + FEW / MEMORY_S)

    def counts_wait(self, waited_s: float) -> bool:
        """Whether a refusal after this wait counts as late."""
        return self.highest and waited_s >= LONG_WAIT * self.objective.threshold_s


def part_of_bound(waiting_share: float) -> float:
    """Part of the bound within which a waiting request of the lowest tier must be likely to get its first token.

    `waiting_share`: share (`WAITING` to 1) of the recent arrivals that would wait.
    """
    return 1.0 - (1.0 - MIN_PART) * min(1.0, (waiting_share - WAITING) / (ALL_WAIT - WAITING))


def vain_guard() -> ShareGuard:
    """The guard of waits in vain."""
    return ShareGuard(IN_VAIN, PRIOR)


def ttft_guards(before: tuple[TtftGuard, ...], objectives: tuple[Objective, ...]) -> tuple[TtftGuard, ...]:
    """One guard for each TTFT objective of a tier. Guards of unchanged objectives keep their counts."""
    kept = {(guard.objective, guard.highest): guard for guard in before}
    last = max(objectives, key=lambda objective: objective.quantile)
    return tuple(
        kept.get((objective, objective is last)) or TtftGuard(objective, objective is last) for objective in objectives
    )
