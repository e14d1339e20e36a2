"""Erlang B and C against exact fractions, sums of logarithms, and tables of textbooks."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.plan.queueing import erlang_b, erlang_c, waits


def exact_b(load: Fraction, servers: int) -> Fraction:
    terms = [load**n / math.factorial(n) for n in range(servers + 1)]
    return terms[-1] / sum(terms)


def b_in_logarithms(load: float, servers: int) -> float:
    """The same sum for any number of servers, without recursion."""
    terms = [n * math.log(load) - math.lgamma(n + 1) for n in range(servers + 1)]
    most = max(terms)
    return math.exp(terms[-1] - most) / math.fsum(math.exp(term - most) for term in terms)


@given(st.fractions(min_value=Fraction(1, 100), max_value=60, max_denominator=100), st.integers(1, 60))
def test_erlang_b_is_the_fraction_that_erlang_wrote(load: Fraction, servers: int) -> None:
    assert erlang_b(float(load), servers) == pytest.approx(float(exact_b(load, servers)), rel=1e-9)


@pytest.mark.parametrize(("load", "servers"), [(1600.5, 1700), (10_000.0, 10_001), (9_999.0, 10_200), (3000.0, 2990)])
def test_erlang_b_of_thousands_of_servers_loses_no_digits(load: float, servers: int) -> None:
    assert erlang_b(load, servers) == pytest.approx(b_in_logarithms(load, servers), rel=1e-7)


def test_erlang_b_of_a_million_servers_is_fast_and_underflows_to_zero() -> None:
    found = waits(1.0, 1_000_000, 1.0)
    assert found is not None
    assert (found.p_wait, found.mean_s, found.p99_s, found.queue) == (0.0, 0.0, 0.0, 0.0)
    assert 0.5 < erlang_c(1e6, 1_000_500) < 1.0


def test_erlang_b_of_many_servers_ends_where_the_smallest_numbers_round_to_themselves() -> None:
    """The probability is e^-4840. It stayed at the smallest number above 0, through all further servers."""
    assert erlang_b(1e6, 1_100_000) == 0.0


def test_erlang_c_gives_the_values_of_published_tables() -> None:
    # Adan and Resing, table 5.1: P(wait) of M/M/c at 90% busy, for 1, 2, 5, 10 and 20 servers.
    assert [round(erlang_c(0.9 * c, c), 2) for c in (1, 2, 5, 10, 20)] == [0.90, 0.85, 0.76, 0.67, 0.55]


@pytest.mark.parametrize(("busy", "queue"), [(0.5, 0.5), (0.8, 3.2), (0.9, 8.1), (0.95, 18.05)])
def test_queueing_waits_of_one_server_equal_those_of_m_m_1(busy: float, queue: float) -> None:
    found = waits(busy, 1, service_s=2.0)
    assert found is not None
    assert found.p_wait == pytest.approx(busy)
    assert found.queue == pytest.approx(queue)
    # Little's law for waiting requests: Lq = rate x mean wait.
    assert found.mean_s == pytest.approx(queue / (busy / 2.0))
    # M/M/1: P(wait > t) = busy e^-((1 - busy) t / service).
    assert busy * math.exp(-(1 - busy) * found.p99_s / 2.0) == pytest.approx(0.01)


def test_queue_without_spare_capacity_has_no_steady_state() -> None:
    assert waits(8.0, 8, 1.0) is None
    assert waits(8.0 - 1e-12, 8, 1.0) is None  # 8, but for rounding
    assert waits(8.1, 8, 1.0) is None
    assert erlang_c(9.0, 8) == 1.0


def test_p99_wait_is_0_if_fewer_than_1_in_100_requests_wait() -> None:
    found = waits(5.0, 14, 1.0)
    assert found is not None
    assert 0.0 < found.p_wait < 0.01
    assert found.p99_s == 0.0
    assert found.mean_s > 0.0


@given(st.floats(0.1, 500.0), st.integers(1, 600))
def test_another_server_never_lengthens_the_wait(load: float, servers: int) -> None:
    fewer, more = waits(load, servers, 1.0), waits(load, servers + 1, 1.0)
    if fewer is not None:
        assert more is not None
        assert more.p_wait <= fewer.p_wait
        assert more.p99_s <= fewer.p99_s
