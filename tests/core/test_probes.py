"""Ejection: how long a slow replica is out, its probes, and its return."""

import math
from itertools import pairwise

from gateway.core.commands import Dispatch
from gateway.core.fleet.health.evidence import EjectionReason
from gateway.core.fleet.health.replica_health import ReplicaHealth
from gateway.core.pool_spec import Ejection
from gateway.core.results import AttemptOutcome
from gateway.core.sample import Sample
from gateway.core.snapshot import ReplicaState

from .made import tier
from .playbook import play
from .steady import Traffic, fleet, out_of_six, state

EJECTION = Ejection()


def test_an_ejected_replica_gets_a_probe_every_five_seconds() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=45.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.until(out_at + 28.0)
    sent = [at for at, name in traffic.sent if name == "r3" and at > out_at]
    assert len(sent) == 5
    assert all(later - earlier >= 4.0 for earlier, later in pairwise(sent))


def test_probes_are_no_more_than_one_request_in_200() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=10.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.until(out_at + 100.0)
    sent = [at for at, name in traffic.sent if name == "r3" and at > out_at]
    assert 4 <= len(sent) <= 6
    assert min(later - earlier for earlier, later in pairwise(sent)) >= 19.9


def test_probe_is_a_request_of_the_least_urgent_tier_if_one_arrives_in_time() -> None:
    story = play(fleet(6, tier("fast", 0), tier("batch", 5)))
    traffic = Traffic(story, per_s=30.0, tier="batch")
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.how = {"tier": "fast"}
    traffic.until(out_at + 9.0)
    assert not [at for at, name in traffic.sent if name == "r3" and at > out_at]
    traffic.until(out_at + 12.0)
    assert len([at for at, name in traffic.sent if name == "r3" and at > out_at]) == 1, "nobody else came"


def test_request_that_broke_a_replica_is_not_used_as_a_probe() -> None:
    story, traffic, out_at = out_of_six(per_s=30.0)
    story.arrives("a", body_hash=7).sent("a").finishes("a", AttemptOutcome.RESET, body_hash=7)
    traffic.until(out_at + 7.0)
    before = story.replica("r3").in_flight
    story.arrives("b", body_hash=7)
    assert story.replica("r3").in_flight == before
    story.arrives("c", body_hash=8)
    assert story.replica("r3").in_flight == before + 1


def test_request_for_an_adapter_is_not_used_as_a_probe() -> None:
    story, traffic, out_at = out_of_six(per_s=30.0)
    traffic.until(out_at + 7.0)
    story.observes("r1", Sample(adapters=("x",), max_adapters=4))
    before = story.replica("r3").in_flight
    story.arrives("a", adapter="x")
    assert story.replica("r3").in_flight == before
    story.arrives("b")
    assert story.replica("r3").in_flight == before + 1


def test_a_replica_that_is_still_slow_stays_ejected_for_longer_each_time() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=12.0)
    traffic.times["r3"] = 3.0
    traffic.until(300.0)
    assert state(story, "r3") is ReplicaState.EJECTED
    assert story.replica("r3").health.ejections[0][1] >= 4
    (last,) = story.replica("r3").health.ejections
    assert last[0] == "slow-ttft"
    assert traffic.share("r3", 60.0) < 0.03, "probes only"


def test_one_quick_probe_of_a_slow_replica_does_not_bring_it_back() -> None:
    """The replica is three times as slow, but its last probe before the end was less than twice as slow."""
    traffic = Traffic(play(fleet(6)), per_s=45.0, spread=0.01)
    story = traffic.story
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.until(out_at + 24.0)
    traffic.times["r3"] = 1.7
    traffic.until(out_at + 29.0)
    traffic.times["r3"] = 3.0
    traffic.until(out_at + 40.0)
    assert state(story, "r3") is ReplicaState.EJECTED
    assert story.replica("r3").health.ejections == (("slow-ttft", 2),)
    assert "time to first token 2." in story.replica("r3").health.why, "of all of them, not of the quick one"


def test_ejection_is_not_extended_if_the_latest_probe_was_fast() -> None:
    """Under light traffic, the time of the ejection is over and one of two probes was slow. The next probe follows at
    once, and decides.
    """
    traffic = Traffic(play(fleet(6)), per_s=6.0)
    traffic.times["r3"] = 8.0
    out_at = traffic.until_out("r3")
    traffic.until(out_at + 8.0)
    assert probes_until_back(traffic, "r3") <= 3
    assert traffic.story.replica("r3").health.ejections == (("slow-ttft", 1),)
    assert traffic.story.now < out_at + 45.0


def probes_until_back(traffic: Traffic, replica: str) -> int:
    """The replica is healthy from now on. Returns the number of requests until it is back."""
    began_at, traffic.times = traffic.story.now, {}
    while state(traffic.story, replica) is ReplicaState.EJECTED:
        traffic.until(traffic.story.now + 0.25)
    return len([at for at, name in traffic.sent if name == replica and began_at < at <= traffic.story.now])


def test_recovered_replica_is_back_early_after_four_good_probes() -> None:
    traffic = Traffic(play(fleet(6)), per_s=40.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    assert probes_until_back(traffic, "r3") == 4
    assert traffic.story.now < out_at + 15.0, "and it is tried more often once one of them was not slow"


def test_second_ejection_needs_eight_good_probes() -> None:
    traffic = Traffic(play(fleet(6)), per_s=40.0)
    for probes in (4, 8):
        traffic.times["r3"] = 3.0
        traffic.until_out("r3")
        assert probes_until_back(traffic, "r3") == probes


def test_slow_probe_voids_the_good_probes_before_it() -> None:
    traffic = Traffic(play(fleet(6)), per_s=40.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    for slow in (False, True) * 20:
        heard = len(traffic.sent)
        while not [at for at, name in traffic.sent[heard:] if name == "r3"]:
            traffic.times = {"r3": 3.0 if slow else 1.0}
            traffic.until(traffic.story.now + 0.25)
    assert state(traffic.story, "r3") is ReplicaState.EJECTED
    assert traffic.story.now > out_at + 60.0


def test_recovered_replica_is_back_early_without_requests_of_the_least_urgent_tier() -> None:
    """Normal probes do not delay the next one."""
    traffic = Traffic(play(fleet(6, tier("fast", 0), tier("batch", 5))), per_s=40.0, tier="fast")
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    probes_until_back(traffic, "r3")
    assert traffic.story.now < out_at + 25.0


def test_cancelled_probes_do_not_end_an_ejection() -> None:
    """A client that leaves at the first delay, or a hedge, does not show how late the answer was."""
    traffic = Traffic(play(fleet(6)), per_s=40.0)
    story = traffic.story
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.until(story.now + 1.0)
    traffic.times["r3"] = math.inf
    while story.now < out_at + 60.0:
        traffic.until(story.now + 0.02)
        for attempt in list(story.controller.state.attempts.values()):
            if attempt.replica.spec.name == "r3" and story.now > attempt.opened_at + 0.12:
                name = story.names[attempt.state.request.id]
                story.leaves(name).cancelled(name)
        assert state(story, "r3") is ReplicaState.EJECTED
    assert traffic.share("r3", out_at + 1.0) > 0.0


def test_two_ejected_replicas_are_probed_in_turns() -> None:
    """With requests for only one probe at a time."""
    story = play(fleet(8))
    traffic = Traffic(story, per_s=10.0)
    traffic.times |= {"r2": 3.0, "r5": 3.0}
    out_at = max(traffic.until_out("r2"), traffic.until_out("r5"))
    traffic.until(out_at + 25.0)
    traffic.times.pop("r5")
    traffic.until(out_at + 150.0)
    assert state(story, "r2") is ReplicaState.EJECTED
    assert state(story, "r5") is ReplicaState.UP


def test_replica_back_from_ejection_starts_with_half_of_its_slots() -> None:
    traffic = Traffic(play(fleet(6, slow_start_s=20.0)), per_s=30.0)
    story = traffic.story
    traffic.times["r3"] = 3.0
    traffic.until_out("r3")
    probes_until_back(traffic, "r3")
    back_at = story.now
    assert story.replica("r3").slots == 4
    traffic.until(back_at + 11.0)
    assert story.replica("r3").slots == 8


def test_replica_that_fills_up_after_ejection_is_not_judged_by_its_itl() -> None:
    """With so few answers under way, nothing is known of the time per token."""
    story = play(fleet(5, slow_start_s=20.0))
    story.at(1.0).drains("r4").at(2.0).drains("r4", on=False)
    for number in range(150):
        story.at(2.0 + number * 0.1).whatever().arrives(f"q{number}")
        (replica,) = (c.replica for c in story.commands if isinstance(c, Dispatch))
        story.sent(f"q{number}").after(0.001).first_token(f"q{number}")
        story.after(0.09 if replica == "r4" else 0.03).finishes(f"q{number}", output_tokens=100)
    assert story.replica("r4").health.itl_excess > math.log(2.0)
    assert state(story, "r4") is ReplicaState.UP


def test_ejection_time_grows_is_capped_and_shrinks_with_health() -> None:
    health, now, times = ReplicaHealth(), 100.0, []
    for _ in range(12):
        health.put_out(EjectionReason.SLOW_TTFT, "", EJECTION, now)
        times.append(health.until - now)
        health.take_back(now)
    assert times == [30.0, 60.0, 90.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0, 300.0, 300.0]
    for second in range(361):
        health.mend(EJECTION, now + second)
    assert health.count == 0


def test_replica_ejected_when_its_breaker_opens_is_judged_anew() -> None:
    """Otherwise no request would close the breaker: an ejected replica gets only probes, each with a slot of its
    own.
    """
    traffic = Traffic(play(fleet(6, slow_start_s=20.0)), per_s=30.0)
    story = traffic.story
    traffic.times["r3"] = 3.0
    traffic.until_out("r3")
    story.fails("r3")
    traffic.times = {}
    traffic.until(story.now + 3.0)
    story.recovers("r3")
    traffic.until(story.now + 2.0)
    assert state(story, "r3") is ReplicaState.UP
    assert story.replica("r3").slots == 1, "its caches are cold"
