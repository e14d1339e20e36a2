"""Policies, records and sources for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from gateway.core.estimators.histograms import LogHistogram
from gateway.core.journal.recorder import Recorded, Told
from gateway.core.policy import Limits, Model, Policy, Tier
from gateway.core.pool_spec import PoolSpec, ReplicaAccess, ReplicaSpec
from gateway.core.request import Endpoint, Request
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason, Record
from gateway.core.sample import GatewayLoad, Sample
from gateway.core.scheduling.placement import Unplaceable
from gateway.core.slo import Objective, Slo
from gateway.core.snapshot import (
    CacheView,
    DemandView,
    ForecastView,
    HedgePoolView,
    HedgeThresholdView,
    HedgeTierView,
    LimitView,
    PoolLearnedView,
    PoolView,
    Reliability,
    ReplicaState,
    ReplicaView,
    Snapshot,
    Trust,
)
from gateway.observe.console.history import LastHour
from gateway.observe.metrics.lag import EDGES
from gateway.observe.metrics.little import LittleView
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.sources import Discovered, RelayView, Reload, Sources, StoreView, Watched

PREMIUM = Tier(
    "premium",
    weight=4,
    slo=Slo(
        ttft=(Objective(0.5, 0.3), Objective(0.99, 2.2)),
        tpot=(Objective(0.99, 0.12),),
        e2e=(Objective(0.95, 31.0),),
        e2e_up_to_tokens=1000,
    ),
    limits=Limits(requests_per_min=60),
)
FREE = Tier("free", priority=2, slo=Slo(ttft=(Objective(0.999, 6.5),)))
LLAMA = Model("llama", ("short", "long"), aliases=("default",))
TRIAL = Model("trial", ("short", "long"), split=(("llama", 1),))


def policy(*tiers: Tier, replicas: int = 2, generation: int = 1) -> Policy:
    """Two pools: "short" with `replicas` replicas r0.., "long" with one."""
    short = PoolSpec(
        "short", tuple(ReplicaSpec(f"r{i}", f"http://10.0.0.{i + 1}:8000") for i in range(replicas)), slots=8
    )
    long = PoolSpec("long", (ReplicaSpec("far", "http://10.0.1.1:8000"),), access=ReplicaAccess("canary-upstream-key"))
    return Policy(
        models={"llama": LLAMA, "default": LLAMA, "trial": TRIAL},
        pools={"short": short, "long": long},
        tiers={tier.name: tier for tier in tiers or (PREMIUM, FREE)},
        keys={},
        default_tier="free",
        generation=generation,
        digest=f"digest-{generation}",
    )


POLICY = policy()
ASK = Request(
    id=1,
    policy=POLICY,
    tier=PREMIUM,
    model=LLAMA,
    tenant="acme",
    endpoint=Endpoint.CHAT,
    stream=True,
    prompt_bytes=400,
    prompt_exact=None,
    max_tokens=None,
    choices=1,
    body_bytes=500,
    head_at=99.9,
    body_at=100.0,
)
OK = Record(
    request=ASK,
    outcome=Outcome.OK,
    why=None,
    pool="short",
    replica="r0",
    queue_s=0.002,
    ttft_s=0.2,
    tpot_s=0.05,
    e2e_s=3.0,
    prompt_tokens=100,
    output_tokens=57,
    tokens_exact=True,
    good=True,
    attempts=1,
)
REFUSED = replace(
    OK,
    outcome=Outcome.REFUSED,
    why=Reason.QUEUE_FULL,
    replica=None,
    queue_s=0.0001,
    ttft_s=None,
    tpot_s=None,
    e2e_s=0.0001,
    output_tokens=0,
    tokens_exact=False,
    good=False,
    attempts=0,
)


def a_request(tier: Tier = PREMIUM, *, stream: bool = True, body_at: float = 100.0, comeback: bool = False) -> Request:
    """A request of `tier`."""
    return replace(ASK, tier=tier, stream=stream, body_at=body_at, comeback=comeback)


def serve(requests: int, tell: Callable[[Told], None], seed: int = 5) -> None:
    """Serve this many requests, one after the other, by a controller whose calls are recorded."""
    controller = Recorded(POLICY, Random(seed), tell)
    for number in range(requests):
        at = 100.0 + number
        controller.observe("r1", Sample(waiting=0, kv_fraction=0.1), at)
        controller.arrive(replace(ASK, id=number, tier=FREE, head_at=at, body_at=at), at)
        controller.sent(number + 1, at + 0.125)
        controller.finish(number + 1, AttemptResult(AttemptOutcome.COMPLETE), at + 0.25)


SNAPSHOT = Snapshot(
    generation=1,
    pools=(
        PoolView(
            name="short",
            in_flight=5,
            queued=2,
            queued_bytes=1000,
            queue_limit=256,
            slots=16,
            drain_rate=3.5,
            prefill_limit_tokens=4096.0,
            demand=DemandView(1.5, 2.0, 12.0, 12000.0, 2400.0),
            replicas=(
                ReplicaView(
                    "r0",
                    "http://10.0.0.1:8000",
                    "short",
                    ReplicaState.UP,
                    4,
                    900,
                    0,
                    Sample(True, 1, 4, 0.25),
                    0.4,
                    slots=16,
                    held_tokens=5000,
                    kv_capacity_tokens=20000.0,
                    preemption_ratio=0.002,
                    step_s=0.04,
                    step_limit_s=0.13,
                    cache=CacheView(0.7, 0.9, 8000, 7200),
                ),
                ReplicaView("r1", "http://10.0.0.2:8000", "short", ReplicaState.DOWN, 1, 0, 3, None, None),
            ),
        ),
        PoolView(
            name="long",
            in_flight=0,
            queued=0,
            queued_bytes=0,
            queue_limit=256,
            slots=1,
            drain_rate=None,
            replicas=(ReplicaView("far", "http://10.0.1.1:8000", "long", ReplicaState.PROBING, 0, 0, 0, None, None),),
        ),
    ),
    tenants=(LimitView("acme", "premium", 60.0, 41.5, 18.5, None, None, None, None, 5),),
    hedged_pools=(HedgePoolView("short", (HedgeThresholdView(256, 80, 3, 0.95, 0.4),), 0.6, False),),
    hedged_tiers=(HedgeTierView("premium", 3.5, 900.0, 4, (("won", 6), ("lost", 4)), (("budget", 2),), 2560, 12),),
    forecast=ForecastView(
        (
            PoolLearnedView(
                "short",
                Trust.TRUSTED,
                (0.1, 0.2, 0.3, 1.0),
                (0.01, 0.1, 0.0, 0.1),
                900,
                2,
                Reliability(700, 0.25, 0.015, 0.1, 0.4, ()),
            ),
            PoolLearnedView("long", Trust.COLD, (), (), 20, 0, Reliability(499, 0.1, 0.25, 0.1, 0.0, ())),
        ),
        (("r0", 1.1),),
    ),
)


def _waits(*seconds: float) -> LogHistogram:
    waits = LogHistogram(EDGES)
    for wait_s in seconds:
        waits.add(wait_s)
    return waits


async def a_snapshot(found: Snapshot = SNAPSHOT) -> Snapshot:
    """For a page that may wait."""
    return found


SOURCES = Sources(
    version="1.2.3",
    policy=lambda: POLICY,
    snapshot=lambda: SNAPSHOT,
    snapshot_in_pieces=a_snapshot,
    reload=lambda: Reload(1_700_000_000.0),
    store=lambda: StoreView("127.0.0.1:6379", 1, 0, ""),
    relays=lambda: [RelayView(1, 4711, 7, 3, 0.001)],
    connections=lambda: 7,
    not_ready=lambda: "",
    watched=lambda: [
        Watched(
            "s1",
            "short",
            {"metrics": "HTTP status 404"},
            {("metrics", "status"): 2},
        )
    ],
    discovered=lambda: [Discovered("long", "file", 2, "", 1)],
    loop_lag_s=lambda: 0.004,
    loop_waits=_waits(0.0002, 0.004),
    dropped=lambda: {"journal": 3},
    little=lambda _: (LittleView("short", 75.0, 4.5, 1.5, 3.0, 0.004), LittleView("long", 75.0, 0.0, 0.0, None, None)),
    find=lambda name, tier: (POLICY.model(name), ""),
    explain=lambda request: Unplaceable(
        Outcome.INVALID, Reason.CONTEXT_LENGTH, f"{request.prompt_exact} tokens for {request.tier.name}"
    ),
    now=lambda: 130.0,
    under_way=lambda _: [],
    history=LastHour(Metrics(POLICY), lambda _: GatewayLoad(5.0), tuple),
)
