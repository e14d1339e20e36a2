"""Routers: the least loaded, fair to equals, cheap in large fleets."""

from collections import Counter
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fleet.routing import FULL_SCAN, ROUTERS, Router, RoutingTarget

from .made import STEADY

loads = st.tuples(st.integers(0, 5), st.sampled_from([0, 100, 5000]))
draws = st.floats(0.0, 1.0, exclude_max=True)


def fleet(loads: list[tuple[int, int]]) -> list[RoutingTarget]:
    return [RoutingTarget(rank, *load) for rank, load in enumerate(loads)]


def shares(router: Router, replicas: list[RoutingTarget], draws: int) -> list[float]:
    """Picks of each replica, relative to an equal share."""
    random = Random(7)
    picked = Counter(router.pick(replicas, random.random()).rank for _ in range(draws))
    return [picked[r.rank] * len(replicas) / draws for r in replicas]


@pytest.mark.parametrize("name", ROUTERS)
@STEADY
@given(loads=st.lists(loads, min_size=1, max_size=40), random=draws)
def test_every_router_picks_one_of_its_candidates(name: str, loads: list[tuple[int, int]], random: float) -> None:
    replicas = fleet(loads)
    assert ROUTERS[name]().pick(replicas, random) in replicas


@STEADY
@given(loads=st.lists(loads, min_size=1, max_size=FULL_SCAN), random=draws)
def test_least_prefill_picks_the_fewest_unread_tokens_then_the_fewest_requests(
    loads: list[tuple[int, int]], random: float
) -> None:
    replicas = fleet(loads)
    picked = ROUTERS["least-prefill"]().pick(replicas, random)
    assert (picked.unprefilled_tokens, picked.in_flight) == min((r.unprefilled_tokens, r.in_flight) for r in replicas)


@pytest.mark.parametrize(("fast", "slow", "picked"), [(390, 100, 0), (410, 100, 1)])
def test_unread_tokens_of_a_slow_replica_count_as_many_times_as_it_is_slow(fast: int, slow: int, picked: int) -> None:
    replicas = fleet([(fast > 0, fast), (slow > 0, slow)])
    replicas[1].slowness = 4.0
    assert all(ROUTERS["least-prefill"]().pick(replicas, random).rank == picked for random in (0.0, 0.9))


def test_idle_slow_replica_is_picked_as_often_as_an_idle_fast_one() -> None:
    replicas = fleet([(0, 0), (0, 0)])
    replicas[1].slowness = 4.0
    assert [ROUTERS["least-prefill"]().pick(replicas, random).rank for random in (0.0, 0.9)] == [0, 1]


def test_slow_replica_is_picked_once_the_fast_one_has_proportionally_more_requests() -> None:
    replicas = fleet([(0, 0), (0, 0)])
    replicas[1].slowness = 2.5
    for _ in range(7):
        ROUTERS["least-prefill"]().pick(replicas, 0.0).in_flight += 1
    assert [replica.in_flight for replica in replicas] == [5, 2]


@STEADY
@given(loads=st.lists(loads, min_size=1, max_size=FULL_SCAN), random=draws)
def test_least_requests_picks_a_replica_with_the_fewest_requests(loads: list[tuple[int, int]], random: float) -> None:
    replicas = fleet(loads)
    assert ROUTERS["least-requests"]().pick(replicas, random).in_flight == min(r.in_flight for r in replicas)


@pytest.mark.parametrize("name", ["least-prefill", "least-requests"])
@pytest.mark.parametrize("busy", [(), (0,), (0, 1, 2, 5), tuple(range(14))])
def test_equally_loaded_replicas_are_picked_equally_often(name: str, busy: tuple[int, ...]) -> None:
    replicas = [RoutingTarget(rank, 9 * (rank in busy), 9000 * (rank in busy)) for rank in range(16)]
    idle = [r for r in replicas if r.rank not in busy]
    random = Random(7)
    picked = Counter(ROUTERS[name]().pick(replicas, random.random()).rank for _ in range(16_000))
    assert sum(picked.values()) == sum(picked[r.rank] for r in idle)
    assert all(picked[r.rank] == pytest.approx(16_000 / len(idle), rel=0.1) for r in idle)


@pytest.mark.parametrize("name", ["least-prefill", "least-requests"])
@pytest.mark.parametrize("size", [FULL_SCAN + 1, 100, 1000])
def test_equally_loaded_replicas_of_a_large_fleet_are_picked_equally_often(name: str, size: int) -> None:
    picks = shares(ROUTERS[name](), fleet([(0, 0)] * size), 200 * size)
    assert min(picks) > 0.6
    assert max(picks) < 1.4


@pytest.mark.parametrize("name", ["least-prefill", "least-requests"])
@pytest.mark.parametrize("size", [FULL_SCAN + 1, 100, 1000])
def test_router_picks_the_better_of_two_random_replicas_in_a_large_fleet(name: str, size: int) -> None:
    # Of two drawn without repetition the better one of ranks 0..n-1 is rank k with probability 2(n-1-k)/(n(n-1)).
    replicas = [RoutingTarget(rank, rank, rank) for rank in range(size)]
    random = Random(7)
    ranks = [ROUTERS[name]().pick(replicas, random.random()).rank for _ in range(20_000)]
    assert sum(ranks) / len(ranks) == pytest.approx((size - 2) / 3, rel=0.05)
    assert max(ranks) < size - 1, "the worst of all is never the better of two"


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ROUTERS)
def test_router_looks_at_only_a_few_replicas_of_a_large_fleet(name: str) -> None:
    looked: list[str] = []

    class Costly(RoutingTarget):
        """Counts its reads."""

        def __getattribute__(self, name: str) -> object:
            if name in ("in_flight", "unprefilled_tokens"):
                looked.append(name)
            return object.__getattribute__(self, name)

    ROUTERS[name]().pick([Costly(rank) for rank in range(1000)], 0.5)
    assert len(looked) <= 6


def taken(router: Router, free: list[RoutingTarget], random: float) -> int:
    """The rank of the replica that gets a request."""
    replica = router.pick(free, random)
    router.sent(replica)
    return replica.rank


def test_round_robin_picks_each_replica_in_turn() -> None:
    router, replicas = ROUTERS["round-robin"](), fleet([(9, 9000), (0, 0), (3, 10)])
    assert [taken(router, replicas, 0.9) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_skips_full_replicas_and_keeps_its_position() -> None:
    router, replicas = ROUTERS["round-robin"](), fleet([(0, 0)] * 5)
    without = [r for r in replicas if r.rank != 2]
    turns = [replicas, replicas, without, replicas, without, without, replicas, replicas]
    assert [taken(router, free, 0.0) for free in turns] == [0, 1, 3, 4, 0, 1, 2, 3]


def test_every_router_picks_the_same_for_the_same_draw() -> None:
    for make in ROUTERS.values():
        first, second = make(), make()
        random = Random(3)
        draws = list(islice(iter(random.random, None), 200))
        replicas = fleet([(rank % 3, 100 * (rank % 5)) for rank in range(40)])
        assert [first.pick(replicas, d).rank for d in draws] == [second.pick(replicas, d).rank for d in draws]
