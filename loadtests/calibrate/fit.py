"""Finds the profile with which the simulator matches the engine best: the costs of a step with the smallest error.

Each burst is replayed on `gateway.sim.engine.replica.Replica`, request by request at the times they were sent. The mean
and the 95th percentile of its times to first token are compared, and its mean time per token. A large burst is compared
in groups of `GROUP` requests. Logarithms are compared, so that errors count relative to their figures. Mixed traffic is
compared in the same way; its rate needs a first fit. It weighs more, since plans are about mixed traffic and no engine
matches this model exactly. The time that each request spends outside of steps is a cost of its own, `path_s`.

The smallest error is searched for without gradients. Steps are discrete, so the error jumps wherever a request just
catches a step. A search stops too early on such a plateau. So it starts in several places, and restarts from its end
until that gains nothing.

Slots are counted, not fitted. If a burst is larger than the slots, the number of first tokens before the first end is
the number of slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gateway.sim.engine.profiles import TIMES, Profile
from gateway.sim.engine.replica import SimulatedReplica
from gateway.sim.engine.sequences import EngineRequest, ReplicaEventKind
from loadtests.calibrate.bursts import Failed, Seen
from loadtests.quantiles import rank

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

STARTS = (
    (10e-3, 5e-5, 4e-5, 5e-8, 1e-3, 1e-3),
    (40e-3, 5e-4, 1e-3, 1e-6, 4e-3, 1e-3),
    (2e-3, 2e-5, 1e-4, 1e-7, 1e-3, 5e-3),
    (1e-3, 2e-6, 2e-6, 2e-9, 1e-4, 1e-3),
)
"""Starting values for `TIMES`: typical GPUs, typical CPUs, and faster ones."""
TRIED, REFINED = 120, 250
"""Number of evaluations of the error from each start, and from the best result before each restart."""
ANEW, GAIN = 8, 0.005
"""Most restarts of the search, and the gain after which another restart follows."""
APART = 3.0
"""Factors on the cost of context in the starts around a known profile."""
BUDGET = 2048
NOISE = 0.05
SIDE = 0.3
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
MIN = 1e-12
MIN_TIME_S = 1e-4
GROUP = 30
WEIGHT = 3.0
"""Weight of errors in mixed traffic, relative to bursts."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A profile, and how well it matches the observations."""

    profile: Profile
    error: float
    """Root mean square of the relative errors."""
    slots_seen: bool
    """Whether the probe filled all slots; otherwise the engine may have more slots than the profile says."""


def fit(
    seen: Sequence[Sequence[Seen]],
    context_tokens: int,
    kv_capacity_tokens: int | None = None,
    name: str = "fitted",
    mixed: Sequence[Sequence[Seen]] = (),
    near: Profile | None = None,
) -> Fitted:
    """`seen`: bursts of several kinds, not necessarily a whole probe; `near`: where to begin, if known.

    Needs scipy (the extra `sim`).
    """
    from scipy.optimize import minimize

    slots, slots_seen = _slots(seen)
    budget = near.max_batched_tokens if near else BUDGET
    groups = [*((1.0, burst) for burst in seen), *((WEIGHT, part) for part in mixed)]
    measured = [(weight, value) for weight, burst in groups for value in _figures(burst)]
    kept = max(context_tokens, kv_capacity_tokens or slots * context_tokens)

    def profile(x: Sequence[float], budget: int) -> Profile:
        seconds = (math.exp(min(1.0, max(math.log(MIN), value))) for value in x)
        times: dict[str, Any] = dict(zip(TIMES, seconds, strict=True))
        held = max(budget, slots + 1)
        return Profile(name, context_tokens, slots, held, kept, **times)

    def errors(told: Profile) -> list[float]:
        expected = (value for _, burst in groups for value in _figures(served(told, burst)))
        return [math.log(a / b) for a, (_, b) in zip(expected, measured, strict=True)]

    def cost(x: Sequence[float], budget: int) -> float:
        """Errors of the size of noise count squared, larger errors count linearly, because some bursts are
        disturbed.
        """
        pairs = zip(errors(profile(x, budget)), measured, strict=True)
        return sum(math.sqrt(1.0 + (weight * error / NOISE) ** 2) - 1.0 for error, (weight, _) in pairs)

    def least(x0: Sequence[float], budget: int, tries: int, side: float = SIDE) -> OptimizeResult:
        simplex = [list(x0), *([v + side * (i == n) for i, v in enumerate(x0)] for n in range(len(x0)))]
        options = {"initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-3, "maxfev": tries}
        return minimize(cost, x0, args=(budget,), method="Nelder-Mead", options=options)

    starts = STARTS if near is None else _around(near)
    tried = [least(list(map(math.log, start)), budget, TRIED) for start in starts]
    best = min(tried, key=lambda end: end.fun)
    for turn in range(ANEW):
        before, budget = min((cost(best.x, tokens), tokens) for tokens in BUDGETS)
        best = least(best.x, budget, REFINED, SIDE if turn % 2 else -SIDE)  # the sign alternates
        if turn and best.fun > before * (1.0 - GAIN):
            break
    found = profile(best.x, budget)
    return Fitted(found, math.sqrt(fmean(error * error for error in errors(found))), slots_seen)


def _around(near: Profile) -> list[list[float]]:
    """`TIMES` of a profile, and variants with a higher and a lower cost of context: in bursts, other costs can take its
    place.
    """
    times = {which: max(MIN, getattr(near, which)) for which in TIMES}
    context = "kv_s_per_token"
    return [list({**times, context: times[context] * by}.values()) for by in (1.0, APART, 1.0 / APART)]


def served(profile: Profile, burst: Sequence[Seen]) -> list[Seen]:
    """Observations of the same requests in the simulator."""
    replica = SimulatedReplica(profile)
    first: dict[int, float] = {}
    last: dict[int, float] = {}

    def run(until: float) -> None:
        while (due := replica.next_at()) <= until and due < math.inf:
            for event in replica.advance(due):
                if event.kind is ReplicaEventKind.FIRST_TOKEN:
                    first.setdefault(event.id, event.at)
                elif event.kind is ReplicaEventKind.FINISHED:
                    last[event.id] = event.at

    for number, request in enumerate(burst):
        at = request.sent_s + profile.path_s
        run(at)
        replica.advance(at)
        replica.add(EngineRequest(number, request.prompt_tokens, request.output_tokens), at)
    run(math.inf)
    return [replace(request, first_s=first[number], last_s=last[number]) for number, request in enumerate(burst)]


def _figures(seen: Sequence[Seen]) -> Iterator[float]:
    """Mean and 95th percentile of the time to first token, and mean time per token; for every `GROUP` requests."""
    for start in range(0, len(seen), GROUP):
        group = seen[start : start + GROUP]
        ttft = sorted(max(MIN_TIME_S, one.first_s - one.sent_s) for one in group)
        tpot = [(one.last_s - one.first_s) / (one.output_tokens - 1) for one in group if one.output_tokens > 1]
        if not tpot:
            raise Failed("the target ends every answer at its first token, although longer ones were asked for")
        yield from (fmean(ttft), rank(ttft, 0.95), max(MIN_TIME_S / 10, fmean(tpot)))


def _slots(seen: Sequence[Sequence[Seen]]) -> tuple[int, bool]:
    """The number of requests of the largest burst that began before the first one ended, and whether others waited
    then. Only if others waited, it is the number of slots.
    """
    burst = max(seen, key=len)
    ends = min(request.last_s for request in burst)
    asked = sum(request.sent_s < ends for request in burst)
    begun = sum(request.first_s < ends for request in burst)
    return begun, begun < asked
