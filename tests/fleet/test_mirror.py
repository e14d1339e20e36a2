"""Copies to shadow pools: how many, when none, and that they leave nothing behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from gateway.core.policy import Mirror, Model
from gateway.core.pool_spec import PoolSpec
from gateway.core.request import Endpoint
from gateway.core.results import MirrorResult
from gateway.fleet.mirror import MAX_BYTES, SHEDDING_S, Mirrors

from .replicas import FakeReplica, answer, policy, pool, replica


class Shadow:
    """The mirror of a model, on a clock that a test sets."""

    def __init__(self, to: PoolSpec, share: float = 1.0, limit: int = 8) -> None:
        self.now = 100.0
        self.told: list[MirrorResult] = []
        self.bugs: list[Exception] = []
        self.down: frozenset[str] = frozenset()
        self.lacking: frozenset[str] = frozenset()
        """Replicas that list other models."""
        self.model = Model("m", ("main",), mirror=Mirror("shadow", share, limit))
        rules = policy(pool("http://10.0.0.1:1", name="main"), to, models=(self.model,))
        self.mirrors = Mirrors(
            rules,
            lambda: self.now,
            lambda replica: replica in self.down,
            lambda replica, name: (name, replica in self.lacking) == ("next", False),
            lambda _m, _p, said: self.told.append(said),
            self.bugs.append,
        )

    def offer(self, requests: int = 1, size: int = 100) -> int:
        """Number of requests of which a copy is made; none is sent."""
        return sum(self.mirrors.admits(self.model, size) for _ in range(requests))

    def send(self, size: int = 100) -> None:
        self.mirrors.send(self.model, "next", Endpoint.CHAT, b"x" * size, b"rid", 5.0)


IDLE = pool("http://127.0.0.1:9", name="shadow")


@pytest.mark.parametrize(("share", "copies"), [(0.02, 20), (0.5, 500), (1.0, 1000), (0.0, 0)])
def test_mirror_copies_its_share_of_the_requests_evenly(share: float, copies: int) -> None:
    shadow = Shadow(IDLE, share)
    tens = [shadow.offer(100) for _ in range(10)]
    assert sum(tens) == pytest.approx(copies, abs=1)
    assert max(tens) - min(tens) <= 1


def test_mirror_pauses_for_a_while_after_the_gateway_has_shed() -> None:
    shadow = Shadow(IDLE)
    shadow.mirrors.shed()
    shadow.now += SHEDDING_S - 0.1
    assert shadow.offer(3) == 0
    shadow.now += 0.2
    assert shadow.offer(3) == 3
    assert shadow.told == [MirrorResult.SHEDDING] * 3


async def test_mirror_copies_are_bounded_in_number_and_free_their_slots() -> None:
    async with replica() as fake:
        fake.answers["/v1/chat/completions"] = None
        shadow = Shadow(pool(fake.url, name="shadow"), limit=2)
        for _ in range(2):
            assert shadow.offer() == 1
            shadow.send()
        assert shadow.offer() == 0
        assert shadow.told == [MirrorResult.FULL]
        await shadow.mirrors.aclose()
        assert shadow.mirrors.under_way == 0
        assert shadow.offer() == 1


async def test_configured_slots_of_the_shadow_pool_bound_mirror_copies() -> None:
    shadow = Shadow(replace(IDLE, slots=1))
    shadow.send()
    assert shadow.offer() == 0
    await shadow.mirrors.aclose()


def test_mirror_does_not_copy_a_large_body() -> None:
    shadow = Shadow(IDLE)
    assert shadow.offer(size=MAX_BYTES + 1) == 0
    assert shadow.offer(size=MAX_BYTES) == 1


async def _sent(fake: FakeReplica, reply: bytes | None) -> list[MirrorResult]:
    if reply is not None:
        fake.answers["/v1/chat/completions"] = reply
    shadow = Shadow(pool(fake.url, name="shadow"))
    shadow.send()
    async with asyncio.timeout(10):
        await shadow.mirrors.ended()
    assert shadow.bugs == []
    return shadow.told


async def test_mirror_discards_and_counts_an_answer_of_any_length() -> None:
    async with replica() as fake:
        assert await _sent(fake, answer(b"y" * 5_000_000)) == [MirrorResult.OK]
        assert fake.paths() == ["/v1/chat/completions"]


async def test_error_of_the_shadow_pool_is_only_counted() -> None:
    async with replica() as fake:
        assert await _sent(fake, answer(status=500)) == [MirrorResult.FAILED]
        await fake.stop()
        assert await _sent(fake, None) == [MirrorResult.FAILED]
        await fake.start()


async def test_mirror_copies_go_to_the_least_busy_replica_that_is_up() -> None:
    three = pool("http://127.0.0.1:9", "http://127.0.0.1:10", "http://127.0.0.1:11", name="shadow")
    shadow = Shadow(three)
    seen: Counter[str] = Counter()
    shadow.down = frozenset({"shadow-1"})
    for _ in range(4):
        shadow.send()
    seen.update(shadow.mirrors.busy())
    assert seen == {"shadow-0": 2, "shadow-2": 2}
    await shadow.mirrors.aclose()


async def test_mirror_copies_go_only_to_replicas_that_may_serve_their_model() -> None:
    shadow = Shadow(pool("http://127.0.0.1:9", "http://127.0.0.1:10", name="shadow"))
    shadow.lacking = frozenset({"shadow-0"})
    for _ in range(2):
        shadow.send()
    assert shadow.mirrors.busy() == {"shadow-1": 2}
    await shadow.mirrors.aclose()


@pytest.mark.parametrize("why", ["down", "lacking"])
def test_mirror_copy_fails_if_no_replica_of_the_shadow_pool_is_up_with_its_model(why: str) -> None:
    shadow = Shadow(IDLE)
    setattr(shadow, why, frozenset({"shadow-0"}))
    shadow.send()
    assert shadow.told == [MirrorResult.FAILED]
