"""Engines are asked how long a prompt is; one that cannot tell is left alone for a while."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from gateway.core.pool_spec import PoolSpec, ReplicaAccess, ReplicaSpec
from gateway.core.sessions import Session, draw, key_of
from gateway.fleet.token_counts import LONG_REST_S, PATH, REST_S, EngineCounts

from .replicas import FakeReplica, answer, replica


@pytest.fixture
async def fake() -> AsyncIterator[FakeReplica]:
    async with replica() as fake:
        yield fake


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def counter(clock: Clock | None = None) -> EngineCounts:
    """Of replicas that are all up, and take any model."""
    return EngineCounts(clock or Clock(), random.Random(1), lambda _: False, lambda *_: True)


def pool(*urls: str, key: str | None = None) -> PoolSpec:
    return PoolSpec("main", tuple(ReplicaSpec(url, url) for url in urls), access=ReplicaAccess(key))


async def test_replica_that_counts_is_asked_with_the_pools_key(fake: FakeReplica) -> None:
    fake.answers[PATH] = answer('{"input_tokens": 11, "context_management": {"original_input_tokens": 11}}')
    counts = counter()
    assert await counts.ask([pool(fake.url, key="secret")], "m", b"{}", b"mine", None) == 11
    assert fake.paths() == [PATH]
    assert fake.asked[0].startswith(b"POST ")
    assert b"authorization: bearer secret" in fake.asked[0].lower()
    assert b"x-request-id: mine" in fake.asked[0].lower()


@pytest.mark.parametrize(
    ("said", "rest_s"),
    [
        (answer(status=404), LONG_REST_S),
        (answer(status=405), LONG_REST_S),
        (answer(status=503), REST_S),
        (answer("{}"), REST_S),
        (answer("[]"), REST_S),
        (answer('{"input_tokens": -1}'), REST_S),
        (answer('{"input_tokens": 1e40}'), REST_S),
        (answer('{"input_tokens": ' + "9" * 400 + "}"), REST_S),
        (answer(b"\xff"), REST_S),
    ],
)
async def test_replica_that_cannot_count_is_left_alone_for_a_while(
    fake: FakeReplica, said: bytes, rest_s: float
) -> None:
    fake.answers[PATH] = said
    clock = Clock()
    counts = counter(clock)
    for at, asked in ((0.0, 1), (rest_s - 1, 1), (rest_s + 1, 2)):
        clock.now = at
        assert await counts.ask([pool(fake.url)], "m", b"{}", b"mine", None) is None
        assert len(fake.asked) == asked


async def test_refused_token_count_that_the_request_may_have_caused_rests_no_replica(fake: FakeReplica) -> None:
    fake.answers[PATH] = answer(status=400)
    counts = counter()
    assert [await counts.ask([pool(fake.url)], "m", b"{}", b"mine", None) for _ in range(2)] == [None, None]
    assert len(fake.asked) == 2


async def test_token_count_is_asked_of_another_replica_while_one_rests(fake: FakeReplica) -> None:
    fake.answers[PATH] = answer('{"input_tokens": 5.0}')
    async with replica() as mute:
        counts = counter()
        answers = [await counts.ask([pool(mute.url), pool(fake.url)], "m", b"{}", b"mine", None) for _ in range(20)]
        assert set(answers) <= {5, None}
        assert answers[-10:] == [5] * 10
        assert len(mute.asked) <= 1


async def test_token_count_is_asked_of_the_sessions_home_or_of_another_while_it_rests(fake: FakeReplica) -> None:
    async with replica() as other:
        for each in (fake, other):
            each.answers[PATH] = answer('{"input_tokens": 5}')
        both = [pool(fake.url, other.url)]
        for number in range(6):
            session = Session("", key_of(f"talk {number}"))
            home = max((fake, other), key=lambda each: draw(session.key, key_of(each.url)))
            counts, before = counter(), len(home.asked)
            assert [await counts.ask(both, "m", b"{}", b"mine", session) for _ in range(3)] == [5, 5, 5]
            assert len(home.asked) == before + 3
        home.answers[PATH] = answer(status=503)
        assert [await counts.ask(both, "m", b"{}", b"mine", session) for _ in range(2)] == [None, 5]
