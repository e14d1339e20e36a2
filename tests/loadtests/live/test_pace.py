"""The schedule is fixed beforehand, and lateness is the client's own fault."""

from __future__ import annotations

import pytest

from loadtests.live.pace import Shot, pace


class Clock:
    """A clock that sleeping and working move on."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def shot(at: float, *, bound_s: float = 1.0) -> Shot:
    return Shot(at, "tier-0", "key", 100, 10, bound_s)


async def sent(ats: list[float], clock: Clock, work_s: float = 0.0) -> list[Shot]:
    shots = [shot(at) for at in ats]

    def send(_: Shot) -> None:
        clock.now += work_s

    await pace(shots, clock, clock.sleep, send)
    return shots


async def test_each_is_sent_when_it_is_due() -> None:
    assert [s.sent_s for s in await sent([0.5, 0.5, 2.0], Clock())] == [0.5, 0.5, 2.0]


async def test_it_catches_up_after_it_was_held_up() -> None:
    # Sending takes 1 s each: two are late, the last one is not, for the schedule has not moved.
    shots = await sent([0.0, 0.25, 0.5, 5.0], Clock(), work_s=1.0)
    assert [s.late_s for s in shots] == pytest.approx([0.0, 0.75, 1.5, 0.0])


async def test_a_sleep_that_ends_early_is_repeated() -> None:
    class Hasty(Clock):
        async def sleep(self, seconds: float) -> None:
            self.now += seconds / 2 if seconds > 1e-3 else seconds

    (only,) = await sent([1.0], Hasty())
    assert 0.0 <= only.late_s < 1e-3


def test_latency_counts_from_when_it_was_due() -> None:
    late = shot(10.0)
    late.sent_s, late.first_s, late.ended_s = 10.9, 11.2, 12.0
    assert late.ttft_s == pytest.approx(1.2)
    assert late.e2e_s == pytest.approx(2.0)
    assert not late.good  # though 0.3 s after it was sent


def test_good_is_finished_with_its_first_token_in_time() -> None:
    fine = shot(0.0)
    fine.first_s, fine.ended_s = 1.0, 9.0
    assert fine.good
    fine.reason = "connection lost"
    assert not fine.good
    assert fine.e2e_s is None


def test_hope_ends_with_the_objective() -> None:
    waiting = shot(5.0)
    assert waiting.hopes(6.0)
    assert not waiting.hopes(6.1)
    waiting.first_s = 5.5
    assert waiting.hopes(100.0)
    waiting.ended_s = 101.0
    assert not waiting.hopes(101.0)
