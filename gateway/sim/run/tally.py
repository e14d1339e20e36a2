"""Counts the events of a run: ends of requests, and each tier's dispatched tokens over time."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from gateway.core.policy import Tier
from gateway.core.results import Outcome, Record
from gateway.sim.workload.arrivals import Arrival

# Prompts are classed by these lengths in tokens. The classes show if a policy gains goodput by dropping long prompts.
LENGTH_EDGES = (256, 1024, 4096, 16384)
LENGTHS = ("<256", "256-1023", "1024-4095", "4096-16383", ">=16384")


def length_of(prompt_tokens: int) -> int:
    """The class of a prompt in LENGTHS."""
    return bisect_right(LENGTH_EDGES, prompt_tokens)


WINDOW_S = 10.0
"""Dispatched tokens are counted in windows of this length (seconds). A tier's floor applies to each window."""


class TallyCell:
    """Numbers of requests of one tier and one prompt length."""

    __slots__ = ("counted", "finished", "good")

    def __init__(self) -> None:
        self.counted = 0
        self.finished = 0
        self.good = 0


class TierTally:
    """Counts of one tier's requests that arrived after the warm-up."""

    __slots__ = (
        "admissions",
        "cells",
        "dispatched",
        "e2e_s",
        "finished_tokens",
        "good_tokens",
        "in_vain",
        "offered",
        "outcomes",
        "output_tokens",
        "queue_s",
        "short",
        "spans",
        "tier",
        "tokens",
        "tpot_s",
        "ttft_s",
        "waited",
        "waiting",
        "waiting_since",
        "whys",
    )

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.offered = 0
        self.cells = [TallyCell() for _ in LENGTHS]
        self.outcomes: Counter[Outcome] = Counter()
        self.admissions = [0, 0, 0, 0]
        """Numbers of counted tries: first tries refused, first tries admitted, retries refused, retries admitted."""
        self.waited = self.in_vain = 0
        """Requests that waited, and those of them that were refused."""
        self.whys: Counter[str] = Counter()
        self.tokens = 0
        """Tokens (prompt and answer) of all counted requests. Answers count with the length that the caps of client and
        tier allow.
        """
        self.output_tokens = 0
        """Tokens of the answers in `tokens`."""
        self.finished_tokens = 0
        self.good_tokens = 0
        # The next lists have the latencies (seconds) of finished requests.
        self.queue_s: list[float] = []
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []
        self.e2e_s: list[float] = []
        self.dispatched: Counter[int] = Counter()
        """Dispatched tokens by window."""
        self.waiting = 0
        """Number of requests of the tier that wait now."""
        self.waiting_since = 0.0
        """Time at which `waiting` last rose from 0."""
        self.spans: list[tuple[float, float]] = []
        """Periods of at least a window's length in which at least one request of the tier waited at any time."""
        self.short: set[int] = set()
        """Windows in which a request of the tier was refused, or waited too long."""

    def waits(self, now: float) -> None:
        """Record that a request of the tier begins to wait."""
        if not self.waiting:
            self.waiting_since = now
        self.waiting += 1

    def waits_no_more(self, now: float) -> None:
        """Record that a request of the tier waits no longer, because it was dispatched or ended."""
        self.waiting -= 1
        if not self.waiting and now >= self.waiting_since + WINDOW_S:
            self.spans.append((self.waiting_since, now))


class Tally:
    """All counts of one run. Requests that arrive before `warmup_s` are left out."""

    def __init__(self, tiers: Iterable[Tier], warmup_s: float) -> None:
        self.tiers = {tier.name: TierTally(tier) for tier in tiers}
        self.warmup_s = warmup_s
        self.sojourn_s = 0.0
        """Sum of the seconds in the system of all counted requests, refused ones included."""
        self.seconds: list[list[int]] = []
        """Numbers of offered, dispatched and good requests, by second of arrival. The warm-up is included."""
        self.slots: list[float] = []
        """Samples of the share (0-1) of a replica's slots in use."""
        self.kv: list[float] = []
        """Samples of the share (0-1) of a replica's KV cache in use."""
        self.unfinished = 0
        """Number of requests that were still under way when the run was given up."""

    def sampled(self, slots: float, kv: float) -> None:
        """Add a sample of a replica."""
        self.slots.append(slots)
        self.kv.append(kv)

    def dispatched(self, tier: TierTally, tokens: int, now: float) -> None:
        """Count the tokens of a request that was dispatched."""
        if now >= self.warmup_s:
            tier.dispatched[int(now / WINDOW_S)] += tokens

    def tried(self, tier: TierTally, record: Record) -> None:
        """Count a try that is over. Its client may retry."""
        if record.outcome.counts and record.request.body_at >= self.warmup_s:
            tier.admissions[record.admission] += 1
            if record.waited:
                tier.waited += 1
                tier.in_vain += not record.attempts

    def ended(self, tier: TierTally, arrival: Arrival, output_tokens: int, record: Record, cut: bool) -> None:
        """Count a request that is over. `output_tokens`: length of its answer without our cap. `cut`: whether our cap
        made it shorter.
        """
        second = self._second(arrival)
        second[0] += 1
        second[1] += record.attempts > 0
        second[2] += record.good and not cut
        if arrival.at < self.warmup_s:
            return
        outcome = record.outcome
        tier.offered += 1
        tier.outcomes[outcome] += 1
        self.sojourn_s += record.e2e_s
        if not outcome.counts:
            return
        cell = tier.cells[length_of(arrival.prompt_tokens)]
        cell.counted += 1
        tokens = arrival.prompt_tokens + output_tokens
        tier.tokens += tokens
        tier.output_tokens += output_tokens
        if outcome is not Outcome.OK:
            tier.whys["" if record.why is None else record.why.value] += 1
            if not record.attempts:
                tier.short.add(int((arrival.at + record.e2e_s) / WINDOW_S))
            return
        cell.finished += 1
        tier.finished_tokens += tokens
        tier.queue_s.append(record.queue_s)
        tier.e2e_s.append(record.e2e_s)
        if record.ttft_s is not None:
            tier.ttft_s.append(record.ttft_s)
        if record.tpot_s is not None:
            tier.tpot_s.append(record.tpot_s)
        if record.good and not cut:
            cell.good += 1
            tier.good_tokens += tokens

    def given_up(self, tier: TierTally, arrival: Arrival) -> None:
        """Count a request as a miss, because the run was given up before it ended."""
        self.unfinished += 1
        self._second(arrival)[0] += 1
        if arrival.at >= self.warmup_s:
            tier.offered += 1
            tier.outcomes[Outcome.TIMEOUT] += 1
            tier.whys["unfinished"] += 1
            tier.cells[length_of(arrival.prompt_tokens)].counted += 1
            tier.tokens += arrival.prompt_tokens + arrival.output_tokens
            tier.output_tokens += arrival.output_tokens

    def _second(self, arrival: Arrival) -> list[int]:
        second = int(arrival.at)
        while len(self.seconds) <= second:
            self.seconds.append([0, 0, 0])
        return self.seconds[second]
