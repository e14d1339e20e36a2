"""Addresses come at once, and leave in an order that shakes no fleet."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.discovery.membership import Membership
from gateway.fleet.discovery.source import Listing

HOLD_S = 10.0


class Fleet:
    """A membership with one source, and replicas that are out of service."""

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self.membership = Membership(HOLD_S)
        self.out: set[str] = set()
        if urls:
            self.tell(urls, 0.0)

    def tell(
        self, urls: Iterable[str], now: float, ending: Iterable[str] = (), is_certain: bool = True
    ) -> tuple[str, ...]:
        self.listing = Listing(frozenset(urls), frozenset(ending), is_certain)
        return self.at(now)

    def at(self, now: float) -> tuple[str, ...]:
        self.membership.settle({"source": self.listing}, self.out.__contains__, now)
        return self.membership.urls


def names(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


def test_new_addresses_are_members_at_once_in_a_stable_order() -> None:
    fleet = Fleet(["b", "a"])
    assert fleet.tell(["c", "a", "b"], 1.0) == ("a", "b", "c")


def test_pool_of_few_replicas_loses_one_at_once() -> None:
    assert Fleet(["a"]).tell([], 1.0) == ()
    assert Fleet(["a", "b"]).tell(["b"], 1.0) == ("b",)


def test_at_most_a_third_leaves_within_the_hold_down_time() -> None:
    fleet = Fleet(names(9))
    left = [len(fleet.tell([], 1.0)), len(fleet.at(10.9)), len(fleet.at(11.0)), len(fleet.at(21.0))]
    assert left == [6, 6, 4, 3]
    assert fleet.membership.held == 3
    assert [len(fleet.at(30.9)), len(fleet.at(31.0))] == [3, 2]


def test_members_that_are_out_of_service_leave_at_once() -> None:
    fleet = Fleet(names(9))
    fleet.out = set(names(7))
    assert fleet.tell([], 1.0) == ()  # two more are within the third


def test_members_whose_source_says_that_they_end_leave_at_once() -> None:
    assert Fleet(names(9)).tell(["r8"], 1.0, ending=names(8)) == ("r8",)


def test_missing_members_of_an_uncertain_listing_leave_only_when_they_are_out_of_service() -> None:
    fleet = Fleet(["a", "b"])
    assert fleet.tell([], 1.0, is_certain=False) == ("a", "b")
    fleet.out = {"a"}
    assert fleet.at(100.0) == ("b",)


def test_address_that_comes_and_goes_must_be_away_for_the_hold_down_time() -> None:
    fleet = Fleet(["a", "b", "c", "d", "e", "f"])
    others = ["b", "c", "d", "e", "f"]
    assert fleet.tell(others, 1.0) == tuple(others)
    assert "a" in fleet.tell(["a", *others], 2.0)
    assert "a" in fleet.tell(others, 3.0)
    assert "a" in fleet.tell(["a", *others], 4.0)
    assert "a" in fleet.tell(others, 5.0)
    assert "a" in fleet.at(14.9)
    assert "a" not in fleet.at(15.0)


def test_members_of_before_stay_until_every_source_has_told_something() -> None:
    membership = Membership(HOLD_S, ["old"])
    membership.settle({"one": Listing(frozenset({"new"})), "two": None}, lambda url: False, 1.0)
    assert membership.urls == ("old", "new")
    membership.settle({"one": Listing(frozenset({"new"})), "two": Listing(frozenset())}, lambda url: False, 2.0)
    assert membership.urls == ("new",)


URLS = st.frozensets(st.sampled_from(names(12)))


@settings(deadline=None)
@given(st.lists(st.tuples(URLS, URLS, st.floats(0.01, 8.0), st.booleans()), min_size=1, max_size=30))
def test_listed_addresses_are_members_and_others_leave_by_the_rules(
    steps: list[tuple[frozenset[str], frozenset[str], float, bool]],
) -> None:
    """After enough time without a change, exactly the listed addresses are members."""
    fleet, now = Fleet(names(12)), 0.0
    removed: list[float] = []
    for urls, out, passed_s, is_certain in steps:
        now += passed_s
        fleet.out = set(out)
        before = set(fleet.membership.urls)
        after = set(fleet.tell(urls, now, is_certain=is_certain))
        gone = before - after
        assert urls <= after <= before | urls
        assert is_certain or gone <= out
        removed += [now] * len(gone - out)
        recent = [at for at in removed if at > now - HOLD_S]
        assert len(recent) <= max(1, (12 + len(recent)) // 2)
    for _ in range(24):
        now += HOLD_S
        fleet.tell(urls, now)
    assert set(fleet.membership.urls) == urls
