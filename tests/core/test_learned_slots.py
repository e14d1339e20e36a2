"""The slots and the KV cache size of an engine are learned from its behaviour."""

import math

import pytest

from gateway.core.fleet.concurrency_limit import START, ConcurrencyLimit
from gateway.core.fleet.kv_cache import KvCache, peak_tokens
from gateway.core.sample import Sample


def learned(slots: int, seconds: int, *, pressed: bool = True) -> ConcurrencyLimit:
    """An engine of this many slots that is sent as much as its limit allows."""
    limit = ConcurrencyLimit()
    for second in range(1, seconds + 1):
        running = min(limit.slots, slots)
        limit.saw(running, limit.slots - running)
        limit.learn(float(second) if pressed else -math.inf, float(second))
    return limit


@pytest.mark.parametrize("slots", [1, 4, 16, 64, 256, 512, 2048])
def test_learned_slots_reach_those_of_the_engine_within_a_minute(slots: int) -> None:
    found = [learned(slots, seconds).slots for seconds in range(60, 90)]
    assert all(0.85 * slots - 1 <= limit <= 1.15 * slots + 1 for limit in found)


def test_load_held_low_by_other_bounds_does_not_lower_learned_slots() -> None:
    limit = ConcurrencyLimit()
    for second in range(1, 60):
        limit.saw(8, 4)
        limit.learn(float(second), float(second))
    assert limit.limit == START


def test_no_slots_are_learned_while_no_request_waits() -> None:
    assert learned(8, 60, pressed=False).limit == START


def test_engine_that_read_no_prompt_teaches_no_slots() -> None:
    limit = ConcurrencyLimit()
    for second in range(1, 60):
        limit.learn(float(second), float(second))
    assert limit.limit == START


@pytest.mark.parametrize("slots", [64, 256, 1024, 2048])
def test_a_cold_engine_that_catches_up_gets_all_its_slots_within_six_seconds(slots: int) -> None:
    assert learned(slots, 6).slots >= slots


def test_learned_slots_grow_although_headroom_is_left_free() -> None:
    limit = ConcurrencyLimit()
    limit.kept = 4.0
    for second in range(1, 8):
        limit.saw(limit.slots - 4, 0)
        limit.learn(float(second), float(second))
    assert limit.slots >= 256


@pytest.mark.parametrize("slots", [1, 4, 20, 40, 100])
def test_learned_slots_above_those_of_the_engine_fall_within_seconds(slots: int) -> None:
    assert max(learned(slots, second).slots for second in range(1, 10)) <= max(START, 2 * slots + 1)
    assert learned(slots, 8).slots <= 1.15 * slots + 1


def test_learned_slots_keep_growing_while_a_busy_engine_runs_more_each_second() -> None:
    limit = ConcurrencyLimit()
    for second, running in enumerate((20, 30, 45, 70), start=1):
        limit.saw(running, max(2, limit.slots - running))
        limit.learn(float(second), float(second))
    assert limit.slots > 70


def test_same_running_count_in_two_scrapes_with_a_waiting_queue_gives_the_slots() -> None:
    limit = ConcurrencyLimit()
    limit.scraped(waiting=6, running=4, in_flight=10)
    assert limit.slots == START  # the first may have waited for room in the next step
    limit.scraped(waiting=5, running=4, in_flight=9)
    assert limit.slots == 4


def test_rising_running_count_in_two_scrapes_does_not_give_the_slots() -> None:
    limit = ConcurrencyLimit()
    for running in range(4, 20):
        limit.scraped(waiting=6, running=running, in_flight=30)
    assert limit.slots == START


# ---- the KV cache


def test_kv_capacity_is_derived_from_usage_and_context() -> None:
    cache = KvCache()
    assert cache.capacity_tokens is None
    for second in range(30):
        held = 40_000 + 1000 * (second % 7)
        cache.scraped(Sample(kv_fraction=held / 131072), held, 0, float(second))
    assert cache.capacity_tokens == pytest.approx(131072, rel=0.01)


@pytest.mark.parametrize("sample", [Sample(waiting=1), Sample(kv_fraction=0.0), Sample(kv_fraction=0.04)])
def test_kv_capacity_is_not_derived_from_an_empty_cache(sample: Sample) -> None:
    cache = KvCache()
    cache.scraped(sample, 5000, 0, 0.0)
    cache.scraped(Sample(kv_fraction=0.5), 0, 0, 1.0)
    assert cache.capacity_tokens is None


def test_kv_capacity_estimate_recovers_after_other_gateways_leave() -> None:
    cache = KvCache()
    for second in range(30):
        cache.scraped(Sample(kv_fraction=0.9), 4000, 0, float(second))  # other gateways hold nearly all of it
    assert cache.capacity_tokens == pytest.approx(4000 / 0.9)
    for second in range(30, 90):
        assert cache.capacity_tokens is not None
        held = int(0.8 * cache.capacity_tokens)
        cache.scraped(Sample(kv_fraction=held / 131072), held, 0, float(second))
    assert cache.capacity_tokens == pytest.approx(131072, rel=0.05)


def test_unread_prompts_are_not_counted_in_the_kv_cache() -> None:
    cache = KvCache()
    cache.scraped(Sample(kv_fraction=0.5), 50_000, 0, 0.0)
    cache.scraped(Sample(kv_fraction=0.001), 60_000, 59_900, 1.0)
    assert cache.capacity_tokens == 100_000


def cache_of(capacity_tokens: int) -> KvCache:
    cache = KvCache()
    cache.scraped(Sample(kv_fraction=0.5), capacity_tokens // 2, 0, 0.0)
    return cache


def room(cache: KvCache, context: int, growth: float, headroom: float | None = None) -> int:
    """Requests that fit, if each holds this many tokens and expects that many more."""
    n = 0
    while cache.has_room(n, n * context, n * growth, headroom):
        n += 1
    return n


def test_configured_kv_headroom_bounds_the_context_in_use() -> None:
    assert room(cache_of(100_000), 1000, 5000.0, headroom=0.2) == 80


def test_kv_cache_fills_with_short_answers_up_to_a_small_reserve() -> None:
    small, large = room(cache_of(100_000), 1000, 100.0), room(cache_of(10_000_000), 1000, 100.0)
    assert 90 <= small <= 97
    assert large >= 0.98 * 10_000


def test_long_answers_are_sent_only_if_their_growth_fits_the_kv_cache() -> None:
    fit = room(cache_of(1_000_000), 500, 5000.0)
    most = peak_tokens(fit * 500, fit * 5000.0)
    assert 0.9 * 1_000_000 < most < 1_000_000
    assert fit < 0.5 * 1_000_000 / 500


@pytest.mark.parametrize(("context", "growth"), [(100.0, 2000.0), (1000.0, 1500.0), (1000.0, 1000.0), (1000.0, 10.0)])
def test_peak_context_formula_matches_requests_that_grow_and_end(context: float, growth: float) -> None:
    over_time = [100 * math.exp(-t / growth) * (context + t) for t in range(10_000)]
    assert peak_tokens(100 * context, 100 * growth) == pytest.approx(max(over_time), rel=0.001)


def test_the_first_request_is_sent_however_small_the_cache_seems() -> None:
    assert cache_of(100).has_room(0, 0, 0.0, None)


def test_preemption_ratio_is_per_recent_request_and_ignores_counter_restarts() -> None:
    cache = KvCache()
    for _ in range(200):
        cache.sent(0.0)
    cache.scraped(Sample(preemptions=70), 0, 0, 0.0)
    assert cache.preemption_ratio == 0.0, "what was before we looked is not ours"
    cache.scraped(Sample(preemptions=72), 0, 0, 1.0)
    assert cache.preemption_ratio == pytest.approx(0.01, rel=0.05)
    cache.scraped(Sample(preemptions=0), 0, 0, 2.0)
    cache.sent(600.0)
    assert cache.preemption_ratio < 1e-3


def test_preemption_ratio_stays_finite_hours_after_the_last_request() -> None:
    cache = KvCache()
    cache.sent(0.0)
    cache.scraped(Sample(preemptions=0), 0, 0, 0.0)
    cache.scraped(Sample(preemptions=2**63 - 1), 0, 0, 44_000.0)
    assert cache.preemption_ratio == 0.0
