"""The part of the engine's own queue in the time before the first token: a mean between two scrapes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.engine_times import MAX_AGE_S, EngineTimes, EngineTotals

SECONDS = st.sampled_from([0.0, 1e-320, 1.0, 1e308, math.nan])


def test_share_is_the_mean_of_the_requests_between_two_scrapes() -> None:
    times = EngineTimes()
    times.scraped("r0", EngineTotals(1000.0, 10, 10.0, 10), 1.0)
    assert times.queue_share("r0", 1.0) is None
    times.scraped("r0", EngineTotals(1003.0, 12, 10.5, 11), 2.0)  # 1.5 s each in the queue, .5 s for the prompt
    assert times.queue_share("r0", 2.0) == pytest.approx(0.75)
    assert times.queue_share("r1", 2.0) is None


def test_scrape_without_a_new_request_keeps_the_last_share_for_a_minute() -> None:
    times = EngineTimes()
    for now, queue_s in ((1.0, 0.0), (2.0, 1.0), (3.0, 1.0)):
        times.scraped("r0", EngineTotals(queue_s, queue_s, queue_s, queue_s), now)
    assert times.queue_share("r0", 2.0 + MAX_AGE_S) == pytest.approx(0.5)
    assert times.queue_share("r0", 2.1 + MAX_AGE_S) is None


def test_restarted_engine_is_compared_with_itself() -> None:
    times = EngineTimes()
    for now, totals in enumerate(((50.0, 5, 50.0, 5), (1.0, 1, 1.0, 1), (1.0, 2, 3.0, 2))):
        times.scraped("r0", EngineTotals(*totals), float(now))
        assert times.queue_share("r0", float(now)) == (0.0 if now == 2 else None)


def test_engine_that_no_longer_tells_and_replica_that_is_removed_have_no_share() -> None:
    times = EngineTimes()
    for name in ("r0", "r1"):
        times.scraped(name, EngineTotals(0.0, 0, 0.0, 0), 1.0)
        times.scraped(name, EngineTotals(1.0, 1, 1.0, 1), 2.0)
    times.scraped("r0", None, 3.0)
    times.forget("r1")
    assert (times.queue_share("r0", 3.0), times.queue_share("r1", 3.0)) == (None, None)


@given(st.lists(st.builds(EngineTotals, SECONDS, SECONDS, SECONDS, SECONDS), max_size=4))
def test_no_page_makes_a_share_outside_0_to_1(pages: list[EngineTotals]) -> None:
    times = EngineTimes()
    for now, totals in enumerate(pages):
        times.scraped("r0", totals, float(now))
        share = times.queue_share("r0", float(now))
        assert share is None or 0.0 <= share <= 1.0
