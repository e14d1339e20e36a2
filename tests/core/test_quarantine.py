"""Quarantine of requests whose replica broke off."""

from gateway.core.pool_spec import Health
from gateway.core.redundancy.request_quarantine import KEEP_S, TELL_EVERY_S, News, Quarantine, doubt_s
from gateway.core.redundancy.retries import FAILURES
from gateway.core.results import AttemptOutcome, Outcome, Reason

from .made import policy, pool
from .playbook import dispatch, ended, play, refuse

RULES = policy(pool("p", "r1", "r2", "r3", slots=4, router="round-robin"))
POISON, OTHER = 1, 2
DOUBT_S = 10.0


def dead(quarantine: Quarantine, request: int, replica: str, now: float) -> None:
    """The replica died with the request."""
    quarantine.broke(request, replica, True, DOUBT_S, now)


def test_request_that_broke_two_different_replicas_is_quarantined() -> None:
    quarantine = Quarantine()
    assert not quarantine.bars(POISON, 0.0)
    dead(quarantine, POISON, "a", 0.0)
    dead(quarantine, POISON, "a", 1.0)
    assert not quarantine.bars(POISON, 1.0), "the same one twice may be its own trouble"
    dead(quarantine, POISON, "b", 2.0)
    assert quarantine.bars(POISON, 2.0)
    assert not quarantine.bars(OTHER, 2.0)


def test_quarantine_ends_when_its_crashes_are_forgotten() -> None:
    quarantine = Quarantine()
    assert quarantine.is_empty(0.0)
    dead(quarantine, POISON, "a", 0.0)
    dead(quarantine, POISON, "b", 5.0)
    assert quarantine.bars(POISON, KEEP_S - 0.1)
    assert not quarantine.bars(POISON, KEEP_S), "the first is forgotten"
    assert not quarantine.is_empty(KEEP_S + 4.9)
    assert quarantine.is_empty(KEEP_S + 5.0)
    dead(quarantine, POISON, "c", KEEP_S + 5.0)
    assert not quarantine.bars(POISON, KEEP_S + 5.0), "what was long ago no longer counts"


def test_broken_connection_counts_for_quarantine_until_health_checks_could_have_failed() -> None:
    quarantine = Quarantine()
    quarantine.broke(POISON, "a", False, DOUBT_S, 0.0)
    quarantine.broke(POISON, "b", False, DOUBT_S, 0.0)
    assert quarantine.bars(POISON, DOUBT_S - 0.1)
    assert not quarantine.bars(POISON, DOUBT_S), "both live"
    assert quarantine.is_empty(DOUBT_S)


def test_broken_connection_counts_as_a_crash_once_its_replica_is_found_down() -> None:
    quarantine = Quarantine()
    for request in (POISON, OTHER):
        quarantine.broke(request, "a", False, DOUBT_S, 0.0)
    quarantine.broke(POISON, "b", True, DOUBT_S, 1.0)
    quarantine.died("a", 5.0)
    quarantine.died("c", 5.0)
    assert quarantine.bars(POISON, KEEP_S - 0.1)
    assert quarantine.knows(OTHER, KEEP_S - 0.1)
    assert not quarantine.knows(OTHER, KEEP_S), "counted from when it broke off"
    quarantine.broke(OTHER, "c", False, DOUBT_S, 100.0)
    quarantine.died("c", 100.0 + DOUBT_S)
    assert not quarantine.bars(OTHER, 100.0 + DOUBT_S), "it went down for something else"


def test_served_request_is_no_longer_suspected() -> None:
    quarantine = Quarantine()
    dead(quarantine, POISON, "a", 0.0)
    quarantine.served(POISON)
    quarantine.served(OTHER)
    dead(quarantine, POISON, "b", 1.0)
    assert not quarantine.bars(POISON, 1.0)


def test_full_quarantine_forgets_its_oldest_requests() -> None:
    quarantine = Quarantine(most=3)
    for request in range(5):
        for replica in ("a", "b"):
            dead(quarantine, request, replica, 0.0)
    assert len(quarantine) == 3
    assert [quarantine.bars(request, 0.0) for request in range(5)] == [False, False, True, True, True]


def test_quarantine_news_is_reported_once() -> None:
    quarantine = Quarantine()
    dead(quarantine, POISON, "b", 0.0)
    dead(quarantine, OTHER, "b", 0.0)
    assert quarantine.news(0.0) == []
    dead(quarantine, POISON, "a", 1.0)
    assert quarantine.news(1.0) == [News(POISON, ("b", "a"), True, 0)]
    assert quarantine.news(1.0) == []
    quarantine.refuses(OTHER, 2.0)
    quarantine.refuses(POISON, 2.0)
    assert quarantine.news(2.0) == [News(POISON, ("b", "a"), False, 1)]
    for second in range(3, 3 + int(TELL_EVERY_S)):
        quarantine.refuses(POISON, float(second))
        if second < 2.0 + TELL_EVERY_S:
            assert quarantine.news(float(second)) == [], "who repeats it does not fill the log"
    assert quarantine.news(2.0 + TELL_EVERY_S) == [News(POISON, ("b", "a"), False, int(TELL_EVERY_S))]


def test_request_that_broke_a_replica_is_tried_on_one_more_and_no_third() -> None:
    story = play(RULES)
    assert not story.controller.suspects(0.0)
    story.arrives("a").sent("a").whatever().finishes("a", AttemptOutcome.RESET, body_hash=POISON).expect(dispatch("r2"))
    assert story.controller.suspects(0.0)
    story.sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON)
    story.expect(refuse(FAILURES[AttemptOutcome.RESET]), ended(Outcome.ERROR, attempts=2))
    story.arrives("b", body_hash=POISON).expect(refuse(Reason.QUARANTINED), ended(Outcome.INVALID, attempts=0))
    story.arrives("c", body_hash=OTHER).expect(dispatch("r3"))


def test_request_sent_anew_after_one_break_is_not_retried_after_the_second() -> None:
    """Its first attempt is the second break-off."""
    story = play(RULES).arrives("a").sent("a").first_token("a").whatever()
    story.finishes("a", AttemptOutcome.TRUNCATED, body_hash=POISON).whatever()
    story.arrives("b", body_hash=POISON).expect(dispatch("r2")).sent("b")
    story.finishes("b", AttemptOutcome.RESET, body_hash=POISON).expect(
        refuse(FAILURES[AttemptOutcome.RESET]), ended(Outcome.ERROR)
    )


def test_request_is_cleared_when_both_broken_replicas_live() -> None:
    story = play(RULES)
    story.arrives("a").sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    story.sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    story.after(doubt_s(Health())).arrives("b", body_hash=POISON).expect(dispatch("r3"))


def test_request_is_barred_for_long_when_both_broken_replicas_went_down() -> None:
    story = play(RULES)
    story.arrives("a").sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    story.sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    story.after(5.0).fails("r1").fails("r2")
    story.at(KEEP_S - 1.0).arrives("b", body_hash=POISON).expect(refuse(Reason.QUARANTINED), ended(Outcome.INVALID))


def test_replicas_with_hanging_checks_are_down_before_the_suspicion_ends() -> None:
    slow = Health(failures=4, interval_s=1.0, timeout_s=5.0, slow_start_s=0.0, ejection=None)
    story = play(policy(pool("p", "r1", "r2", "r3", slots=4, router="round-robin", health=slow)))
    story.arrives("a").sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    story.sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    for seconds in (6.0, 12.0, 18.0, 24.0):
        story.at(seconds).fails("r1", times=1).fails("r2", times=1)
    story.at(60.0).arrives("b", body_hash=POISON).expect(refuse(Reason.QUARANTINED), ended(Outcome.INVALID))


def test_quarantine_is_not_prolonged_by_replicas_that_stay_down() -> None:
    story = play(RULES)
    story.arrives("a").sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    story.sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    for seconds in range(1, int(KEEP_S)):
        story.at(float(seconds)).fails("r1").fails("r2")
    story.at(KEEP_S - 1.0).arrives("b", body_hash=POISON).expect(refuse(Reason.QUARANTINED), ended(Outcome.INVALID))
    story.at(KEEP_S).arrives("c", body_hash=POISON).expect(dispatch("r3"))


def test_served_retry_clears_the_suspicion_of_its_own_first_attempt() -> None:
    story = play(RULES).arrives("a").sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    assert story.controller.suspects(story.now)
    story.served("a")
    assert not story.controller.suspects(story.now)


def test_queued_request_is_refused_as_soon_as_its_body_broke_two_replicas() -> None:
    story = play(policy(pool("p", "r1", "r2", "r3", slots=1, router="round-robin")))
    story.arrives("a").arrives("x").arrives("y").sent("a").whatever()
    story.served("x").whatever().finishes("a", AttemptOutcome.RESET, body_hash=POISON).expect(dispatch("r2", of="a"))
    story.arrives("z").expect(dispatch("r1"))
    story.arrives("b", body_hash=POISON, tenant="globex").arrives("c", body_hash=OTHER).expect()
    story.sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).expect(
        refuse(Reason.QUARANTINED, of="b"),
        ended(Outcome.INVALID, of="b", attempts=0),
        refuse(FAILURES[AttemptOutcome.RESET], of="a"),
        ended(Outcome.ERROR, of="a", attempts=2),
        dispatch("r2", of="c"),
    )
    assert [news.refused for news in story.controller.quarantined(story.now)] == [1]


def test_request_quarantined_during_its_attempt_is_not_retried_even_when_busy() -> None:
    story = (
        play(RULES).arrives("a").sent("a").finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever().sent("a")
    )
    story.arrives("b", body_hash=POISON, tenant="globex").expect(dispatch("r3")).sent("b")
    story.finishes("a", AttemptOutcome.RESET, body_hash=POISON).whatever()
    story.finishes("b", AttemptOutcome.BUSY).expect(refuse(Reason.UPSTREAM_BUSY), ended(Outcome.ERROR, attempts=1))


def test_quarantine_news_names_only_replicas_that_still_count() -> None:
    quarantine = Quarantine()
    quarantine.broke(POISON, "a", False, DOUBT_S, 0.0)
    dead(quarantine, POISON, "b", 1.0)
    dead(quarantine, POISON, "c", DOUBT_S)
    assert quarantine.news(DOUBT_S)[-1] == News(POISON, ("b", "c"), True, 0)
