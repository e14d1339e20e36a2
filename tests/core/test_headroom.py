"""Room that less urgent tiers leave free for more urgent ones."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.queueing.headroom import AskedTiers, places_kept
from gateway.core.results import AttemptOutcome, Reason
from gateway.core.sample import Sample
from gateway.core.scheduling.explanation import PlacementExplanation
from gateway.core.slo import Objective, Slo
from tests.core.made import policy, pool, tier
from tests.core.oracle import ENFORCE, story_of
from tests.core.playbook import Story, commit, dispatch, play
from tests.core.test_explain import explained
from tests.interpreted import interpreted

P99 = Objective(0.99, 1.0)
STRICT = tier("premium", priority=0, slo=Slo(ttft=(P99,)))


def waits_too_long(kept: int, arrivals: float, ends: float, limit_s: float, seed: int) -> float:
    """Share of urgent requests that wait longer than `limit_s`, while slots are taken and released at random."""
    random = Random(seed)
    now, free, late, seen = 0.0, kept, 0, 0
    waiting: list[float] = []
    while seen < 20_000:
        now += random.expovariate(arrivals + ends)
        if random.random() < ends / (arrivals + ends):
            if waiting:
                late += now - waiting.pop(0) > limit_s
                seen += 1
            else:
                free = min(free + 1, kept)
        elif free:
            free -= 1
            seen += 1
        else:
            waiting.append(now)
    return late / seen


@pytest.mark.parametrize(("arrivals", "ends"), [(2.0, 8.0), (4.0, 8.0), (1.0, 3.0)])
def test_headroom_for_urgent_tiers_is_just_enough_for_their_objective(arrivals: float, ends: float) -> None:
    kept = places_kept([P99], arrivals, ends, wanted=1000)
    assert kept > 0
    assert waits_too_long(kept, arrivals, ends, 0.2, seed=1) <= 0.013
    assert waits_too_long(kept - 1, arrivals, ends, 0.2, seed=1) > 0.008


@pytest.mark.parametrize("slow", [Objective(0.99, 30.0), Objective(0.5, 1.0)])
def test_no_headroom_is_kept_for_objectives_that_leave_time_to_wait(slow: Objective) -> None:
    assert places_kept([slow], 2.0, 8.0, wanted=100) == 0


@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.integers(0, 500))
def test_headroom_is_at_most_one_deviation_of_the_requests_in_flight(
    arrivals: float, ends: float, in_flight: int
) -> None:
    assert 0 <= places_kept([P99], arrivals, ends, in_flight) <= math.ceil(math.sqrt(in_flight + 1))


def busy(floor: float = 0.0, slots: int = 4) -> Story:
    """Few slots, and requests of both tiers that end one after another. `floor` is that of the less urgent one."""
    story = play(policy(pool("p", "r1", slots=slots), STRICT, tier("free", priority=1, floor=floor)))
    for number in range(12):
        story.at(1.0 + 0.1 * number)
        for name in ("premium", "free"):
            story.arrives(f"{name}{number}", tier=name, prompt=10).whatever().served(f"{name}{number}").whatever()
    return story.observes("r1", Sample(healthy=True)).whatever()


def test_less_urgent_request_waits_if_only_headroom_is_left() -> None:
    story = busy()
    for number in range(3):
        story.arrives(f"f{number}", tier="free", prompt=10).expect(dispatch("r1"))
    found = explained(story, tier="free", prompt=10)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.constraint) == ("waits", "places")
    story.arrives("f3", tier="free", prompt=10).expect()
    story.arrives("urgent", tier="premium", prompt=10).expect(dispatch("r1"))


@pytest.mark.parametrize(("end", "per_s"), [(AttemptOutcome.COMPLETE, 2.0), (AttemptOutcome.REJECTED, None)])
def test_urgent_requests_that_go_past_a_backlog_count_in_the_drain_rate(
    end: AttemptOutcome, per_s: float | None
) -> None:
    story = busy()
    for number in range(4):
        story.arrives(f"f{number}", tier="free", prompt=10).whatever()
    for number in range(12):
        story.arrives(f"u{number}", tier="premium", prompt=10).expect(dispatch("r1"))
        story.after(0.5).finishes(f"u{number}", end, status=400 if per_s is None else 200).whatever()
    assert story.pool("p").queued == 1
    assert story.pool("p").drain_rate == (None if per_s is None else pytest.approx(per_s, rel=0.05))


def test_headroom_is_given_back_once_urgent_requests_stop_arriving() -> None:
    story = busy()
    for number in range(4):
        story.arrives(f"f{number}", tier="free", prompt=10)
    story.whatever().at(60.0).observes("r1", Sample(healthy=True)).expect(dispatch("r1", of="f3"))


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_tier_that_is_owed_its_floor_uses_the_headroom(floor: float) -> None:
    story = busy(floor)
    for number in range(3):
        story.arrives(f"f{number}", tier="free", prompt=10).expect(dispatch("r1"))
    story.arrives("f3", tier="free", prompt=10).expect()
    story.arrives("urgent", tier="premium", prompt=1000).whatever().served("urgent").whatever()
    assert story.pool("p").queued == (0 if floor else 1)


def test_waiting_tier_uses_the_headroom_as_soon_as_it_is_owed_its_floor() -> None:
    story = busy(floor=0.3, slots=8)
    for number in range(3):
        story.arrives(f"p{number}", tier="premium", prompt=10).expect(dispatch("r1"))
    story.observes("r1", Sample(healthy=True))
    for number in range(3):
        story.arrives(f"f{number}", tier="free", prompt=10).expect(dispatch("r1"))
    story.arrives("f3", tier="free", prompt=10).expect()  # two places are kept
    story.arrives("urgent", tier="premium", prompt=1000).expect(dispatch("r1"), dispatch("r1", of="f3"))


@pytest.mark.parametrize("stream", [True, False])
def test_queue_is_served_as_soon_as_a_replica_has_read_a_long_prompt(stream: bool) -> None:
    story = busy(slots=8)
    story.arrives("long", tier="premium", prompt=20_000, stream=stream).expect(dispatch("r1"))
    story.arrives("f", tier="free", prompt=10).expect()  # unread prompts are at their limit
    if stream:
        story.sent("long").first_token("long").expect(commit(of="long"), dispatch("r1", of="f"))
    else:
        story.after(10.0).expect(dispatch("r1", of="f"))  # the long prompt should be read by then


def test_tier_without_a_ttft_objective_yields_while_a_more_urgent_one_is_short_of_room() -> None:
    urgent = tier("urgent", slo=Slo(ttft=(P99,)), priority=0)
    patient = tier("patient", slo=Slo(e2e=(Objective(0.99, 600.0),)), priority=1)
    chatty = tier("chatty", slo=Slo(ttft=(Objective(0.99, 600.0),)), priority=2)
    hasty = tier("hasty", slo=Slo(e2e=(Objective(0.99, 4.0),)), priority=3)
    asked = AskedTiers()
    for number in range(200):
        asked.used(urgent, 0.01 * number)
    asked.keep({}, 3.0, 1.0, 2.0)
    asked.short(urgent, 2.0)
    assert not asked.yields(patient, is_owed=False), "one of 200 may be lost"
    asked.short(urgent, 2.0)
    assert asked.yields(patient, is_owed=False)
    assert not asked.yields(patient, is_owed=True), "its floor is guaranteed"
    assert not asked.yields(chatty, is_owed=False), "it has promised when answers begin"
    assert not asked.yields(hasty, is_owed=False), "it could not be in time afterwards"
    assert not asked.yields(urgent, is_owed=False)
    asked.keep({}, 3.0, 1.0, 4.9)
    assert asked.yields(patient, is_owed=False)
    asked.keep({}, 3.0, 1.0, 5.1)
    assert not asked.yields(patient, is_owed=False), "what was sent before has left"


def test_tier_is_not_short_of_room_any_more_once_enough_later_requests_were_not_lost() -> None:
    urgent = tier("urgent", slo=Slo(ttft=(P99,)), priority=0)
    patient = tier("patient", slo=Slo(e2e=(Objective(0.99, 600.0),)), priority=1)
    asked = AskedTiers()
    asked.used(urgent, 0.0)
    asked.short(urgent, 0.0)
    assert asked.yields(patient, is_owed=False)
    for number in range(100):
        asked.used(urgent, 0.01 * number)
    asked.keep({}, 3.0, 1.0, 1.0)
    assert not asked.yields(patient, is_owed=False)


def test_priority_of_a_tier_that_is_short_of_room_may_change() -> None:
    urgent = tier("urgent", slo=Slo(ttft=(P99,)), priority=0)
    patient = tier("patient", slo=Slo(e2e=(Objective(0.99, 600.0),)), priority=1)
    asked = AskedTiers()
    asked.used(urgent, 0.0)
    asked.short(urgent, 0.0)
    assert asked.yields(patient, is_owed=False)
    asked.used(replace(urgent, priority=2), 1.0)
    asked.keep({}, 3.0, 1.0, 1.0)
    assert not asked.yields(patient, is_owed=False)


def short_of_room() -> Story:
    """Two idle replicas, and a tier `batch` that yields to a tier that is short of room, until the next sample."""
    rules = policy(pool("p", "r1", "r2", slots=4), STRICT, tier("batch", priority=1))
    story = play(rules).arrives("sent before", tier="batch").expect(dispatch("r1"))
    found = story.controller.state.fleet.pool("p")
    assert found is not None
    found.asked.used(rules.tiers["premium"], story.now)
    found.asked.short(rules.tiers["premium"], story.now)
    return story


def test_request_that_yields_is_sent_as_soon_as_room_is_not_short_any_more() -> None:
    story = short_of_room().arrives("new", tier="batch").expect()
    story.after(1.0).observes("r1", Sample(healthy=True)).expect(dispatch("r2", of="new"))


def test_retry_does_not_yield() -> None:
    short_of_room().finishes("sent before", AttemptOutcome.UNREACHABLE).expect(dispatch("r2"))


@interpreted
@pytest.mark.parametrize(
    ("asked", "yields"),
    [((None, None), True), ((0.9, 0.1), True), ((0.001, None), False), ((None, 1e-6), False)],
)
def test_only_a_lost_request_that_an_idle_replica_would_serve_in_time_makes_others_yield(
    asked: tuple[float | None, float | None], yields: bool
) -> None:
    """Otherwise one client could stop all less urgent tiers with a bound that nobody can keep."""
    story, oracle = story_of(
        pool("p", "r1"), tier("premium", slo=STRICT.slo, admission=ENFORCE), tier("batch", priority=1)
    )
    for number in range(40):
        name = f"{number}"
        story.arrives(name).sent(name).after(0.05).first_token(name).after(0.5).progress(name, 20)
        story.finishes(name, output_tokens=20).whatever()
    oracle.breach["p"] = 0.9
    story.arrives("lost", slo=STRICT.slo.tightened(*asked)).whatever()
    assert story.records["lost"].why is Reason.PREDICTED
    story.arrives("b", tier="batch").expect(*(() if yields else (dispatch("r1"),)))
