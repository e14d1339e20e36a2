"""Hedges as Prometheus families: their number, results and cost."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from gateway.core.snapshot import Snapshot
from gateway.observe.metrics.families import counter


def hedging_families(snapshot: Snapshot) -> Iterator[Metric]:
    """All families, with their present values."""
    tiers = snapshot.hedged_tiers
    yield counter(
        "tailgate_hedges",
        "Requests that were sent a second time because their first token was late, by which attempt won.",
        ("tier", "outcome"),
        [((tier.tier, outcome), n) for tier in tiers for outcome, n in tier.outcomes],
    )
    yield counter(
        "tailgate_hedges_denied",
        "Requests that were not sent a second time although their first token was late, by reason.",
        ("tier", "reason"),
        [((tier.tier, reason), n) for tier in tiers for reason, n in tier.denied],
    )
    yield counter(
        "tailgate_hedge_wasted_tokens",
        "Tokens of attempts that lost: of prompts, without cached ones, and output seen to pass.",
        ("tier", "kind"),
        [
            ((tier.tier, kind), n)
            for tier in tiers
            for kind, n in (("prompt", tier.wasted_prompt_tokens), ("output", tier.wasted_output_tokens))
        ],
    )
