"""Goodput of a test as the gateway's own metrics count it, to stand beside what clients saw."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from loadtests.verdict.promises import Judgement

GOOD, OFFERED = "tailgate_good_requests_total", "tailgate_offered_requests_total"
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Requests that a gateway has counted since its start, by tier."""

    good: dict[str, float]
    offered: dict[str, float]

    def since(self, before: TierCounts) -> dict[str, float]:
        """Share (0-1) of good requests since then, for tiers that were offered any."""
        shares = {}
        for tier, offered in self.offered.items():
            more = offered - before.offered.get(tier, 0.0)
            if more > 0.0:
                shares[tier] = (self.good.get(tier, 0.0) - before.good.get(tier, 0.0)) / more
        return shares


async def read_counts(admin_url: str) -> TierCounts:
    """Read them from the metrics of an admin port. Raises ValueError if it has none of a gateway."""
    url = f"{admin_url.rstrip('/')}/metrics"
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
            answer = await client.get(url)
            answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(f"--admin {admin_url}: {url}: {error}") from None
    counts: dict[str, dict[str, float]] = {GOOD: {}, OFFERED: {}}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name in counts:
                counts[sample.name][sample.labels["tier"]] = sample.value
    if not counts[OFFERED]:
        raise ValueError(f"--admin {admin_url}: {url} has no {OFFERED}: it is no admin port of tailgate")
    return TierCounts(counts[GOOD], counts[OFFERED])


async def beside(
    admin_url: str | None, after_s: float, test: Callable[[], Awaitable[None]], pushed: asyncio.Event
) -> dict[str, float]:
    """Run `test`. Returns the gateway's share of good requests by tier, from `after_s` into the test until it is
    `pushed`, or over; empty without `admin_url`. Raises ValueError.
    """
    if admin_url is None:
        await test()
        return {}
    await read_counts(admin_url)  # a wrong address is told before the test

    async def begin() -> TierCounts:
        await asyncio.sleep(after_s)
        return await read_counts(admin_url)

    async def end() -> TierCounts:
        await pushed.wait()
        return await read_counts(admin_url)

    beginning, ending = asyncio.create_task(begin()), asyncio.create_task(end())
    try:
        await test()
        if not beginning.done():
            return {}  # the test ended in its warm-up
        pushed.set()
        return (await ending).since(await beginning)
    finally:
        beginning.cancel()
        ending.cancel()


def counted(one: Judgement, shares: dict[str, float]) -> float | None:
    """The gateway's share of good requests; None beside a promise that is not of goodput, or if it is unknown."""
    return shares.get(one.promise.tier) if one.promise.metric is None else None


def differs(one: Judgement, shares: dict[str, float]) -> bool:
    """Whether the gateway's share is outside the interval of what clients saw before the push."""
    share = counted(one, shares)
    return share is not None and one.before is not None and not one.before.low <= share <= one.before.high
