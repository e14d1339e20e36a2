"""Token buckets and the usage of a tenant: no tokens are lost or created."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.policy import LimitKind, Limits
from gateway.core.queueing.bucket import TokenBucket
from gateway.core.queueing.limits import Tenants
from gateway.core.sample import LimitLease, QuotaWindow

from .made import STEADY, tier

rates = st.floats(0.01, 1e6)
gaps = st.floats(0.0, 1e4)
amounts = st.floats(-1e6, 1e6)


@STEADY
@given(rates, st.lists(st.tuples(gaps, amounts), min_size=5, max_size=30))
def test_token_bucket_never_holds_more_than_its_burst(per_min: float, steps: list[tuple[float, float]]) -> None:
    bucket, now = TokenBucket(per_min, per_min, 1.0, 0.0), 0.0
    for gap, amount in steps:
        now += gap
        bucket.take(amount, now)
        assert bucket.level(now) <= bucket.burst == max(1.0, per_min)
        assert bucket.level(now + gap) >= bucket.level(now)
        limit, left, reset_s = bucket.left(now)
        assert (limit, left) == (bucket.burst, max(0.0, bucket.level(now)))
        assert bucket.level(now + reset_s) == pytest.approx(bucket.burst)


@STEADY
@given(rates, st.lists(st.tuples(gaps, st.floats(0.0, 1e3)), min_size=10, max_size=60))
def test_token_bucket_passes_at_most_its_burst_and_refill(per_min: float, steps: list[tuple[float, float]]) -> None:
    bucket, now, passed = TokenBucket(per_min, per_min, 1.0, 0.0), 0.0, 0.0
    for gap, amount in steps:
        now += gap
        if bucket.wait_s(amount, now) == 0.0:
            bucket.take(amount, now)
            passed += amount
    assert passed <= (bucket.burst + now * per_min / 60.0) * (1 + 1e-9)


@STEADY
@given(rates, st.lists(st.tuples(gaps, st.floats(0.0, 1e3)), min_size=3, max_size=20), st.floats(0.0, 1e3), gaps)
def test_request_fits_the_limit_after_its_retry_after(
    per_min: float, steps: list[tuple[float, float]], amount: float, gap: float
) -> None:
    bucket, now = TokenBucket(per_min, per_min, 1.0, 0.0), 0.0
    for gap_s, taken in steps:
        now += gap_s
        bucket.take(taken, now)
    now += gap
    wait_s = bucket.wait_s(amount, now)
    if amount > bucket.burst:
        assert wait_s == math.inf or bucket.level(now) >= amount
    else:
        assert bucket.level(now + wait_s) >= amount - 1e-6 * max(1.0, bucket.burst)
        assert wait_s == 0.0 or bucket.level(now + 0.99 * wait_s) < amount


@STEADY
@given(rates, st.lists(st.tuples(st.floats(0.0, 1e3), st.floats(0.0, 1.0)), min_size=3, max_size=20), gaps)
def test_token_bucket_after_a_return_is_as_if_nothing_was_taken(
    per_min: float, leases: list[tuple[float, float]], gap: float
) -> None:
    """Holds while the bucket does not fill up: an overflow is lost, as in any token bucket."""
    bucket, plain = TokenBucket(per_min, per_min, 1.0, 0.0), TokenBucket(per_min, per_min, 1.0, 0.0)
    bucket.take(1e9, 0.0)
    plain.take(1e9, 0.0)
    for reserved, share in leases:
        used = reserved * share
        plain.take(used, 0.0)
        bucket.take(reserved, 0.0)
    for reserved, share in leases:
        bucket.take(reserved * share - reserved, gap)
    assert bucket.level(gap) == pytest.approx(plain.level(gap), rel=1e-6)


@STEADY
@given(rates, rates, st.floats(0.0, 1e3), gaps)
def test_token_bucket_with_a_new_limit_keeps_the_used_tokens(old: float, new: float, taken: float, gap: float) -> None:
    bucket = TokenBucket(old, old, 1.0, 0.0)
    bucket.take(taken, 0.0)
    used = bucket.burst - bucket.level(gap)
    bucket.resize(new, new, 1.0, gap)
    assert bucket.burst - bucket.level(gap) == pytest.approx(used, abs=1e-6 * max(old, new, 1.0))
    assert bucket.level(gap + 1e9) == bucket.burst == max(1.0, new)


@pytest.mark.parametrize("leased", [None, 0.0, 10.0])
@STEADY
@given(st.integers(1, 10), st.integers(1, 12))
def test_gateway_without_a_store_has_its_equal_share_of_a_concurrency_limit(
    leased: float | None, limit: int, gateways: int
) -> None:
    bucket, under_way = TokenBucket(limit, 0.0, 1.0 / gateways, 0.0), 0
    if leased is not None:
        bucket.lease = LimitLease("acme", "std", LimitKind.CONCURRENCY, leased, 0.0, 0.5, 3.0)
    for now in (1.0, 4.0):  # before and after the lease lapses
        while bucket.wait_s(1.0, now) == 0.0:
            bucket.take(1.0, now)
            under_way += 1
    for _ in range(100):
        if under_way:
            bucket.take(-1.0, 4.0)
            under_way -= 1
        while bucket.wait_s(1.0, 4.0) == 0.0:
            bucket.take(1.0, 4.0)
            under_way += 1
    assert under_way == max(1, limit // gateways)


def test_gateway_without_a_store_has_its_equal_share_of_what_was_left_of_a_quota() -> None:
    bucket = TokenBucket(1000, 0.0, 0.5, 0.0, QuotaWindow("day", "2026-11-29", 86400.0))
    bucket.lease = LimitLease("acme", "std", LimitKind.TOKENS_DAY, 10.0, 590.0, 0.1, 30.0, "2026-11-29")
    bucket.take(10.0, 20.0)
    assert bucket.wait_s(1.0, 20.0) == 1.0, "others have some"
    assert bucket.level(40.0) == 295.0
    bucket.take(100.0, 40.0)
    assert bucket.level(50.0) == 195.0
    assert bucket.wait_s(196.0, 50.0) == 86350.0


LIMITS = Limits(requests_per_min=5, tokens_per_min=1000, concurrency=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 400), st.floats(0.0, 20.0)),
        st.tuples(st.just("end"), st.integers(0, 400), st.floats(0.0, 20.0)),
        st.tuples(st.just("refuse"), st.just(0), st.floats(0.0, 20.0)),
    ),
    min_size=20,
    max_size=60,
)


@STEADY
@given(steps)
def test_tenant_never_exceeds_its_limits(steps: list[tuple[str, int, float]]) -> None:
    use, now, open_leases, passed = Tenants().of("acme", tier("std", limits=LIMITS), 0.0), 0.0, list[int](), 0
    for what, tokens, gap in steps:
        now += gap
        if what == "arrive":
            if use.check(tokens, now) is None:
                use.take(tokens, now)
                open_leases.append(tokens)
                passed += 1
        elif open_leases:
            reached = what == "end"
            use.settle(open_leases.pop(0), tokens, reached, now)
            passed -= not reached
        view = use.view(now)
        assert view.in_flight == len(open_leases) <= 4
        assert passed <= 5 + now * 5 / 60 + 1e-6
        assert 0 <= (view.requests_left or 0) <= 5
        assert 0 <= (view.tokens_left or 0) <= 1000
