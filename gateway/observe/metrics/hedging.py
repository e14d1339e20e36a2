"""Duplicates of late requests as Prometheus families: when, how many, what came of them and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from gateway.core.snapshot import Snapshot
from gateway.observe.metrics.families import counter, gauge


def hedging_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Every family, at this moment."""
    tiers, pools = snapshot.hedged_tiers, snapshot.hedged_pools
    yield counter(
        "tailgate_hedges",
        "Requests that were sent a second time because their first token was late, by who had it.",
        ("tier", "outcome"),
        [((tier.tier, outcome), n) for tier in tiers for outcome, n in tier.outcomes],
    )
    yield counter(
        "tailgate_hedges_denied",
        "Requests whose first token was late and that were not sent a second time, by why not.",
        ("tier", "reason"),
        [((tier.tier, reason), n) for tier in tiers for reason, n in tier.denied],
    )
    yield counter(
        "tailgate_hedge_holdout",
        "Requests that were drawn never to be sent a second time.",
        ("tier",),
        [((tier.tier,), tier.held) for tier in tiers],
    )
    yield counter(
        "tailgate_hedge_wasted_tokens",
        "Tokens of attempts that lost: prompts sent, and output seen to pass.",
        ("tier", "kind"),
        [
            ((tier.tier, kind), n)
            for tier in tiers
            for kind, n in (("prompt", tier.wasted_prompt_tokens), ("output", tier.wasted_output_tokens))
        ],
    )
    yield gauge(
        "tailgate_hedge_ttft_p95_seconds",
        "p95 of the time from sent to first token of first attempts, by prompt tokens up to (a power of two).",
        ("pool", "prompt_tokens"),
        [
            ((pool.pool, str(threshold.prompt_tokens)), threshold.p95_s)
            for pool in pools
            for threshold in pool.thresholds
            if threshold.p95_s is not None
        ],
        "seconds",
    )
    yield gauge(
        "tailgate_hedge_won_ratio",
        "Share of the last 200 duplicates of the pool that had the first token.",
        ("pool",),
        [((pool.pool,), pool.won) for pool in pools if pool.won is not None],
        "ratio",
    )
