"""The profile with which the simulator does what the engine did: least squares over the costs of a step.

Each burst is served by `gateway.sim.replica.Replica`, request by request at the times at which they were sent, and
compared in the mean and the latest of its times to first token, and in its mean time per token: as logarithms, so that
a millisecond of ten counts as much as a second of ten thousand. What every request pays on its way there and back is a
cost of its own, so that it is not taken for one of the engine.

Slots are counted, not fitted: of a burst of more requests than there are slots, so many have a first token before the
first of them ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gateway.sim.profiles import Profile
from gateway.sim.replica import Kind, Replica, Request
from loadtests.calibrate.bursts import Seen

STARTS = ((10e-3, 5e-5, 4e-5, 5e-8), (40e-3, 5e-4, 1e-3, 1e-6), (1e-3, 2e-6, 2e-6, 2e-9))
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
LEAST = 1e-12
LEAST_TIME_S = 1e-4


@dataclass(frozen=True, slots=True)
class Fitted:
    """A profile, and how well it tells what was seen."""

    profile: Profile
    path_s: float
    """What each request takes on its way, beside the engine."""
    error: float
    """Root mean square of the relative errors."""
    slots_seen: bool
    """Whether there were more requests at once than slots; else it may have more than the profile says."""


def fit(
    seen: Sequence[Sequence[Seen]], context_tokens: int, kv_capacity_tokens: int | None = None, name: str = "fitted"
) -> Fitted:
    """Needs scipy (the extra `sim`). The probe's bursts need not be all of them, but of several kinds."""
    from scipy.optimize import least_squares

    slots, slots_seen = _slots(seen)
    measured = [value for burst in seen for value in _figures(burst)]

    def profile(costs: Sequence[float], budget: int) -> Profile:
        base, prefill, decode, kv = (max(LEAST, math.exp(value)) for value in costs)
        kept = max(context_tokens, kv_capacity_tokens or slots * context_tokens)
        return Profile(name, context_tokens, slots, max(budget, slots + 1), kept, base, prefill, decode, kv)

    def errors(x: Sequence[float], budget: int) -> list[float]:
        told = profile(x[:4], budget)
        path_s = math.exp(x[4])
        expected = [value for burst in seen for value in _figures(served(told, burst, path_s))]
        return [math.log(a / b) for a, b in zip(expected, measured, strict=True)]

    best = None
    for start in STARTS:
        x0 = [*map(math.log, start), math.log(1e-3)]
        bound = [*map(math.log, (1e-5, 1e-9, 1e-9, 1e-12, 1e-6))], [*map(math.log, (10.0, 1.0, 1.0, 1e-2, 1.0))]
        # Steps are whole ones: a difference that is too small finds no slope.
        found = least_squares(errors, x0, bounds=bound, args=(2048,), loss="soft_l1", f_scale=0.05, diff_step=1e-3)
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    budget = min(BUDGETS, key=lambda tokens: sum(value * value for value in errors(best.x, tokens)))
    if budget != 2048:
        best = least_squares(errors, best.x, bounds=bound, args=(budget,), loss="soft_l1", f_scale=0.05, diff_step=1e-3)
    left = errors(best.x, budget)
    return Fitted(
        profile(best.x[:4], budget), math.exp(best.x[4]), math.sqrt(fmean(value * value for value in left)), slots_seen
    )


def served(profile: Profile, burst: Sequence[Seen], path_s: float = 0.0) -> list[Seen]:
    """The same requests in the simulator. `path_s` is added before first tokens are seen."""
    replica = Replica(profile)
    first: dict[int, float] = {}
    last: dict[int, float] = {}

    def run(until: float) -> None:
        while (due := replica.next_at()) <= until and due < math.inf:
            for event in replica.advance(due):
                if event.kind is Kind.FIRST_TOKEN:
                    first.setdefault(event.id, event.at)
                elif event.kind is Kind.FINISHED:
                    last[event.id] = event.at

    for number, request in enumerate(burst):
        run(request.sent_s)
        replica.advance(request.sent_s)
        replica.add(Request(number, request.prompt_tokens, request.output_tokens), request.sent_s)
    run(math.inf)
    return [
        replace(request, first_s=first[number] + path_s, last_s=last[number] + path_s)
        for number, request in enumerate(burst)
    ]


def _figures(burst: Sequence[Seen]) -> list[float]:
    """Mean and latest time to first token, and mean time per token."""
    ttft = [max(LEAST_TIME_S, seen.first_s - seen.sent_s) for seen in burst]
    tpot = [(seen.last_s - seen.first_s) / (seen.output_tokens - 1) for seen in burst if seen.output_tokens > 1]
    return [fmean(ttft), max(ttft), max(LEAST_TIME_S / 10, fmean(tpot))]


def _slots(seen: Sequence[Sequence[Seen]]) -> tuple[int, bool]:
    """Of the largest burst."""
    burst = max(seen, key=len)
    ends = min(request.last_s for request in burst)
    begun = sum(request.first_s < ends for request in burst)
    return begun, begun < len(burst)
