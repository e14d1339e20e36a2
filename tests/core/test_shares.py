"""Max-min fair shares of tenants: who is within its share, so that others give way to it."""

from __future__ import annotations

import math

import pytest

from gateway.core.queueing.shares import LEVEL_S, SHARES_TAU_S, FairShares


def ran(offered: dict[str, float], served: float, seconds: float = 600.0) -> FairShares:
    """The shares after tenants have offered these tokens per second for a while."""
    shares = FairShares()
    for second in range(int(seconds)):
        for tenant, tokens in offered.items():
            shares.offered(tenant, tokens, float(second))
        shares.served(served, float(second))
    return shares


@pytest.mark.parametrize(
    ("offered", "served", "within"),
    [
        ({"a": 30.0, "b": 270.0}, 100.0, "a"),
        ({"a": 48.0, "b": 270.0}, 100.0, "a"),
        ({"a": 60.0, "b": 270.0}, 100.0, ""),
        ({"a": 60.0, "b": 270.0, "c": 10.0}, 160.0, "ac"),  # c leaves some of its part to a
        ({"a": 75.0, "b": 75.0}, 100.0, ""),
        ({"a": 300.0}, 100.0, ""),
    ],
)
def test_tenant_is_within_its_share_up_to_the_max_min_fair_level(
    offered: dict[str, float], served: float, within: str
) -> None:
    shares = ran(offered, served)
    assert {tenant for tenant in offered if shares.is_within(tenant, 600.0)} == set(within)


def test_nobody_gives_way_while_all_that_is_offered_is_served() -> None:
    shares = ran({"a": 30.0, "b": 70.0}, 101.0)
    assert not any(shares.is_within(tenant, 600.0) for tenant in ("a", "b", "new"))


def test_newcomer_is_within_its_share_in_an_overload() -> None:
    assert ran({"a": 300.0}, 100.0).is_within("new", 600.0)


def test_reading_shares_changes_nothing() -> None:
    shares, read = ran({"a": 30.0, "b": 270.0}, 100.0), ran({"a": 30.0, "b": 270.0}, 100.0)
    for tenth in range(100):
        read.is_within("b", 600.0 + tenth / 10)
    for found in (shares, read):
        found.offered("a", 1.0, 700.0)
    assert [shares.is_within(t, 700.0 + LEVEL_S) for t in "ab"] == [read.is_within(t, 700.0 + LEVEL_S) for t in "ab"]


def test_tenants_that_left_are_forgotten() -> None:
    shares = ran({f"t{i}": 1.0 for i in range(100)}, 10.0, seconds=10.0)
    long_after = 10.0 + 20.0 * SHARES_TAU_S
    shares.offered("a", 100.0, long_after)
    shares.served(10.0, long_after)
    shares.offered("a", 100.0, long_after + 2.0 * LEVEL_S)
    assert not shares.is_within("a", long_after + 2.0 * LEVEL_S)
    assert math.isclose(shares.level, 10.0 / SHARES_TAU_S, rel_tol=0.1)
