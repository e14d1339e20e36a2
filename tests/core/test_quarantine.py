"""What is remembered of requests whose replica broke off."""

import pytest

from gateway.core.model import End, Outcome, Why
from gateway.core.quarantine import KEEP_S, TELL_EVERY_S, News, Quarantine

from .made import policy, pool
from .playbook import dispatch, ended, play, refuse

RULES = policy(pool("p", "r1", "r2", "r3", slots=4, router="round-robin"))
POISON, OTHER = 1, 2


def test_two_different_replicas_hold_a_request() -> None:
    quarantine = Quarantine()
    assert not quarantine.holds(POISON, 0.0)
    quarantine.broke(POISON, "a", 0.0)
    quarantine.broke(POISON, "a", 1.0)
    assert not quarantine.holds(POISON, 1.0), "the same one twice may be its own trouble"
    quarantine.broke(POISON, "b", 2.0)
    assert quarantine.holds(POISON, 2.0)
    assert not quarantine.holds(OTHER, 2.0)


def test_it_is_over_in_the_end() -> None:
    quarantine = Quarantine()
    assert quarantine.is_empty(0.0)
    quarantine.broke(POISON, "a", 0.0)
    quarantine.broke(POISON, "b", 5.0)
    assert quarantine.holds(POISON, KEEP_S + 4.9)
    assert not quarantine.is_empty(KEEP_S + 4.9)
    assert not quarantine.holds(POISON, KEEP_S + 5.0)
    assert quarantine.is_empty(KEEP_S + 5.0)
    quarantine.broke(POISON, "c", KEEP_S + 5.0)
    assert not quarantine.holds(POISON, KEEP_S + 5.0), "what was long ago no longer counts"


def test_a_request_that_was_served_is_innocent() -> None:
    quarantine = Quarantine()
    quarantine.broke(POISON, "a", 0.0)
    quarantine.served(POISON)
    quarantine.served(OTHER)
    quarantine.broke(POISON, "b", 1.0)
    assert not quarantine.holds(POISON, 1.0)


def test_the_oldest_are_forgotten() -> None:
    quarantine = Quarantine(most=3)
    for request in range(5):
        for replica in ("a", "b"):
            quarantine.broke(request, replica, 0.0)
    assert len(quarantine) == 3
    assert [quarantine.holds(request, 0.0) for request in range(5)] == [False, False, True, True, True]


def test_what_is_caught_and_what_is_refused_is_told_once() -> None:
    quarantine = Quarantine()
    quarantine.broke(POISON, "b", 0.0)
    quarantine.broke(OTHER, "b", 0.0)
    assert quarantine.news(0.0) == []
    quarantine.broke(POISON, "a", 1.0)
    assert quarantine.news(1.0) == [News(POISON, ("b", "a"), True, 0)]
    assert quarantine.news(1.0) == []
    quarantine.holds(OTHER, 2.0)
    quarantine.holds(POISON, 2.0)
    assert quarantine.news(2.0) == [News(POISON, ("b", "a"), False, 1)]
    for second in range(3, 3 + int(TELL_EVERY_S)):
        quarantine.holds(POISON, float(second))
        if second < 2.0 + TELL_EVERY_S:
            assert quarantine.news(float(second)) == [], "who repeats it does not fill the log"
    assert quarantine.news(2.0 + TELL_EVERY_S) == [News(POISON, ("b", "a"), False, int(TELL_EVERY_S))]


@pytest.mark.parametrize("end", [End.RESET, End.TRUNCATED])
def test_the_third_is_not_sent(end: End) -> None:
    story = play(RULES)
    assert not story.controller.suspects(0.0)
    story.arrives("a").sent("a").finishes("a", end, body_hash=POISON)
    assert story.controller.suspects(0.0)
    story.arrives("b", body_hash=POISON).sent("b").finishes("b", end, body_hash=POISON).whatever()
    story.arrives("c", body_hash=POISON).expect(refuse(Why.QUARANTINED), ended(Outcome.INVALID, attempts=0))
    story.arrives("d", body_hash=OTHER).expect(dispatch("r3"))
    story.after(KEEP_S).arrives("e", body_hash=POISON).expect(dispatch("r1"))


def test_one_that_is_served_is_forgotten() -> None:
    story = play(RULES).arrives("a").sent("a").finishes("a", End.RESET, body_hash=POISON)
    story.arrives("b", body_hash=POISON).served("b")
    assert not story.controller.suspects(story.now)
    story.arrives("c").sent("c").finishes("c", End.RESET, body_hash=POISON).whatever()
    story.arrives("d", body_hash=POISON).expect(dispatch("r1"))
