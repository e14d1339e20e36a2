"""For any policy, traffic and faults, every request ends once, and nothing is left behind."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.engine.profiles import PROFILES
from gateway.sim.run.options import Options
from gateway.sim.run.simulation import Simulation
from gateway.sim.run.tally import Tally
from gateway.sim.workload.arrivals import Arrival
from tests.core.drivers import TENANTS, TIERS, policies
from tests.core.made import STEADY
from tests.sim.made import Spy

gaps_s = st.sampled_from([0.0, 0.0, 0.001, 0.005, 0.02, 0.3])


@st.composite
def traffic(draw: st.DrawFn) -> list[Arrival]:
    """A crowd of requests, some at the same moment, some longer than the engine's context."""
    at, arrivals = 0.0, []
    for _ in range(draw(st.integers(1, 40))):
        at += draw(gaps_s)
        arrivals.append(
            Arrival(
                at,
                draw(st.sampled_from(TIERS)),
                draw(st.sampled_from(TENANTS)),
                "m",
                prompt_tokens=draw(st.sampled_from([1, 40, 149, 400, 2000, 4090])),
                output_tokens=draw(st.sampled_from([0, 1, 2, 30, 500])),
                stream=draw(st.booleans()),
                max_tokens=draw(st.sampled_from([None, None, 1, 90])),
            )
        )
    return arrivals


@st.composite
def faults(draw: st.DrawFn, policy: Policy) -> tuple[Fault, ...]:
    """A few faults of replicas, at the times of other events."""
    names = [replica.name for pool in policy.pools.values() for replica in pool.replicas]
    return tuple(
        Fault(draw(gaps_s) * draw(st.integers(1, 40)), draw(st.sampled_from(names)), draw(st.sampled_from(Harm)), 20.0)
        for _ in range(draw(st.integers(0, 4)))
    )


def ways_s() -> st.SearchStrategy[tuple[float, ...]]:
    """No ways, or several, one of which takes no time."""
    return st.sampled_from([(), (0.0, 0.01, 0.2)])


def play(
    policy: Policy,
    arrivals: list[Arrival],
    harms: tuple[Fault, ...],
    patience_s: float,
    *,
    retries: int = 0,
    ways_s: tuple[float, ...] = (),
) -> tuple[Spy, Simulation]:
    options = Options(patience_s=patience_s, retries=retries, give_up_s=1000.0, progress_s=0.1, ways_s=ways_s)
    spec = FleetSpec(dict.fromkeys(policy.pools, PROFILES["test"]), harms)
    spy = Spy(Controller(policy, Random(1)))
    engine = Simulation(spy, policy, spec.hosts(policy), options, Tally(policy.tiers.values(), 0.0), 1)
    for fault in harms:
        engine.plan(fault)
    engine.run(iter(arrivals))
    return spy, engine


@STEADY
@given(st.data(), policies(), traffic(), st.sampled_from([0.05, 1.0, float("inf")]))
def test_every_simulated_request_ends_once_and_leaves_no_state(
    data: st.DataObject, policy: Policy, arrivals: list[Arrival], patience_s: float
) -> None:
    harms = data.draw(faults(policy))
    spy, engine = play(policy, arrivals, harms, patience_s, ways_s=data.draw(ways_s()))
    ended = Counter(record.request.id for record in spy.records())
    assert set(ended.values()) <= {1}
    assert len(ended) + len(engine.requests) == len(arrivals)
    opened = [dispatch.attempt for dispatch in spy.dispatches()]
    closed = [heard.args[0] for heard in spy.calls("finish")]
    assert len(set(closed)) == len(closed)
    assert set(opened) - set(closed) == set(engine.attempts)
    assert all(attempt.request.latest.id in engine.requests for attempt in engine.attempts.values())
    inside = sum(host.model.waiting + host.model.running for host in engine.hosts.values())
    assert inside == len(engine.attempts)
    assert all(
        tier.waiting == sum(not t.dispatched for t in engine.requests.values() if t.tier is tier)
        for tier in engine.tally.tiers.values()
    )
    times = [heard.at for heard in spy.heard]
    assert times == sorted(times)


@STEADY
@given(st.data(), policies(), traffic(), st.sampled_from([0.05, 1.0, float("inf")]), st.integers(1, 3))
def test_simulated_clients_that_retry_are_counted_once(
    data: st.DataObject, policy: Policy, arrivals: list[Arrival], patience_s: float, retries: int
) -> None:
    harms, ways = data.draw(faults(policy)), data.draw(ways_s())
    spy, engine = play(policy, arrivals, harms, patience_s, retries=retries, ways_s=ways)
    ended = Counter(record.request.id for record in spy.records())
    assert set(ended.values()) <= {1}
    assert len(arrivals) <= len(spy.calls("arrive")) <= len(arrivals) * (1 + retries)
    offered = sum(tier.offered for tier in engine.tally.tiers.values())
    assert offered + len(engine.requests) == len(arrivals)


@STEADY
@given(st.data(), policies(), traffic())
def test_simulated_run_is_repeatable(data: st.DataObject, policy: Policy, arrivals: list[Arrival]) -> None:
    harms, ways = data.draw(faults(policy)), data.draw(ways_s())
    first, second = (play(policy, arrivals, harms, 1.0, ways_s=ways)[0].heard for _ in range(2))
    assert first == second


@STEADY
@given(policies(), traffic(), st.sampled_from(sorted(baselines.BASELINES)))
def test_baselines_end_every_request_once(policy: Policy, arrivals: list[Arrival], name: str) -> None:
    setup = baselines.setup(name, policy)
    spy = Spy(setup.decider(setup.policy, Random(1)))
    hosts = FleetSpec(dict.fromkeys(policy.pools, PROFILES["test"])).hosts(setup.policy)
    tally = Tally(setup.policy.tiers.values(), 0.0)
    engine = Simulation(spy, setup.policy, hosts, Options(patience_s=1.0), tally, 1)
    engine.run(iter(arrivals))
    assert not engine.requests
    assert sorted(record.request.id for record in spy.records()) == list(range(1, len(arrivals) + 1))
