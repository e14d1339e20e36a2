"""Ejection: who is slow beside its pool, or silent, is left out; by how many, for how long, and how it comes back."""

import math
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.commands import Dispatch
from gateway.core.eject import most_slow
from gateway.core.model import End
from gateway.core.pulse import Out, Pulse, Score
from gateway.core.rules import Ejection, Health, Policy
from gateway.core.snapshot import ReplicaState

from .made import STEADY, policy, pool, tier
from .playbook import Story, play

EJECTION = Ejection()


def fleet(replicas: int, *tiers: Any, slots: int = 8, slow_start_s: float = 0.0, **ejection: Any) -> Policy:
    """A pool of so many, in turns."""
    health = Health(failures=3, open_s=5.0, slow_start_s=slow_start_s, ejection=Ejection(**ejection))
    names = [f"r{n}" for n in range(1, replicas + 1)]
    return policy(pool("p", *names, slots=slots, router="round-robin", health=health), *tiers)


class Traffic:
    """Requests at a steady rate, each answered after the time that its replica takes."""

    def __init__(self, story: Story, *, per_s: float, ttft_s: float = 0.1, spread: float = 0.1, **how: Any) -> None:
        self.story = story
        self.per_s = per_s
        self.ttft_s = ttft_s
        self.spread = spread
        self.times: dict[str, float] = {}
        """Replicas that take so many times as long; inf: never answer."""
        self.sent: list[tuple[float, str]] = []
        self.how = how
        self._random = Random(1)
        self._due: list[tuple[float, str]] = []
        self._next_at = story.now

    def until(self, time_s: float) -> Story:
        """Go on until then."""
        story = self.story
        while True:
            due = min(self._due, default=(math.inf, ""))
            at = min(due[0], self._next_at)
            if at > time_s:
                return story.at(time_s)
            story.at(at)
            if due[0] <= self._next_at:
                self._due.remove(due)
                self._hear(story.whatever().first_token(due[1]).finishes(due[1], output_tokens=1))
            else:
                self._next_at += 1.0 / self.per_s
                self._hear(story.whatever().arrives(f"q{len(story._ids) + 1}", **self.how))

    def _hear(self, story: Story) -> None:
        for command in story._said:
            if isinstance(command, Dispatch):
                name = f"q{command.ask}"
                times = self.times.get(command.replica, 1.0)
                self.sent.append((story.now, command.replica))
                story.sent(name)
                if times < math.inf:
                    took_s = self.ttft_s * times * math.exp(self._random.gauss(0.0, self.spread))
                    self._due.append((story.now + took_s, name))

    def stop(self) -> None:
        """Nothing more arrives."""
        self._next_at = math.inf

    def until_out(self, replica: str) -> float:
        """Go on until it is ejected; when it was."""
        for _ in range(60):
            if state(self.story, replica) is ReplicaState.EJECTED:
                return self.story.now
            self.until(self.story.now + 1.0)
        raise AssertionError(f"{replica} is not ejected")

    def share(self, replica: str, since: float, until: float = math.inf) -> float:
        """Of all requests that were sent."""
        counts = Counter(name for at, name in self.sent if since <= at < until)
        return counts[replica] / max(1, sum(counts.values()))


def state(story: Story, replica: str) -> ReplicaState:
    return story.replica(replica).state


# ---- slow ones


def test_one_that_takes_three_times_as_long_is_ejected_within_fifteen_seconds() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.until(20.0)
    traffic.times["r3"] = 3.0
    traffic.until(35.0)
    assert state(story, "r3") is ReplicaState.EJECTED
    assert traffic.share("r3", 35.0 - 1.0) < 0.05
    health = story.replica("r3").health
    assert health.out == "slow-ttft"
    assert "times that of its pool (z " in health.why
    assert health.ejections == (("slow-ttft", 1),)
    assert all(state(story, f"r{n}") is ReplicaState.UP for n in (1, 2, 4, 5, 6))


def test_one_that_is_twelve_times_as_slow_is_ejected_before_much_of_it_has_come() -> None:
    story = play(fleet(6, slots=64))
    traffic = Traffic(story, per_s=30.0, ttft_s=0.5)
    traffic.until(20.0)
    traffic.times["r3"] = 60.0
    traffic.until(33.0)
    assert state(story, "r3") is ReplicaState.EJECTED


def test_requests_that_were_called_off_count_as_well() -> None:
    """Who is rescued by a hedge or a timeout does not hide the replica it was rescued from."""
    story = play(fleet(5, stall_s=1e6))
    for number in range(600):
        story.at(number * 0.1).whatever().arrives(f"q{number}")
        (replica,) = (c.replica for c in story._said if isinstance(c, Dispatch))
        story.sent(f"q{number}")
        if replica == "r2" and number > 200:
            story.after(0.095).leaves(f"q{number}").cancelled(f"q{number}")
        else:
            story.after(0.02).served(f"q{number}", output_tokens=1)
    assert story.replica("r2").health.out == "slow-ttft"


def test_what_was_called_off_early_says_nothing() -> None:
    score = Score()
    score.add(0.5)
    score.add_overdue(0.2)
    assert (score.mean, score.seen) == (0.5, 1.0)


def test_one_slow_answer_proves_nothing() -> None:
    score = Score()
    for _ in range(20):
        score.add(0.0)
    score.add(10.0)
    assert 0.0 < score.mean < 0.3


def test_slow_tokens_alone_are_enough() -> None:
    story = play(fleet(5))
    for number in range(400):
        story.at(number * 0.1).whatever().arrives(f"q{number}")
        (replica,) = (c.replica for c in story._said if isinstance(c, Dispatch))
        slow = replica == "r4" and number > 150
        story.sent(f"q{number}").after(0.001).first_token(f"q{number}")
        story.after(0.09 if slow else 0.03).finishes(f"q{number}", output_tokens=100)
    assert story.replica("r4").health.out == "slow-itl"


def test_long_answers_show_it_long_before_they_end() -> None:
    story = play(fleet(5, slots=200))
    streams: list[tuple[str, str, float]] = []
    for number in range(800):
        name = f"q{number}"
        story.at(number * 0.04).whatever().arrives(name)
        (replica,) = (c.replica for c in story._said if isinstance(c, Dispatch))
        story.sent(name).after(0.001).first_token(name)
        streams.append((name, replica, story.now))
        for other, at, began in streams[number % 5 :: 5]:
            steps_s = 0.06 if at == "r4" and began > 12.0 else 0.02
            story.progress(other, 1 + int((story.now - began) / steps_s))
        if story.replica("r4").health.out:
            break
    assert story.replica("r4").health.out == "slow-itl"
    assert story.now < 26.0
    assert not story.records, "none has ended"


def test_a_pool_that_slows_down_together_loses_nobody() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0, spread=0.5)
    traffic.until(20.0)
    traffic.times = {f"r{n}": 4.0 for n in range(1, 7)}
    traffic.until(80.0)
    assert all(state(story, f"r{n}") is ReplicaState.UP for n in range(1, 7))


@pytest.mark.parametrize("replicas", [1, 2])
def test_of_two_nobody_can_say_which_is_the_odd_one(replicas: int) -> None:
    story = play(fleet(replicas))
    traffic = Traffic(story, per_s=20.0)
    traffic.times["r1"] = 5.0
    traffic.until(40.0)
    assert state(story, "r1") is ReplicaState.UP


def test_it_does_not_explain_itself_away_by_its_own_learned_speed() -> None:
    """One that was always slow is as conspicuous as one that has become so."""
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.times["r3"] = 3.0
    traffic.until(25.0)
    assert state(story, "r3") is ReplicaState.EJECTED


def test_without_ejection_nobody_is_ejected_and_switching_it_off_takes_all_back() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.times["r3"] = 3.0
    traffic.until(25.0)
    assert state(story, "r3") is ReplicaState.EJECTED
    off = policy(pool("p", *(f"r{n}" for n in range(1, 7)), slots=8, router="round-robin"))
    story.configured(off)
    assert state(story, "r3") is ReplicaState.UP
    traffic.until(80.0)
    assert state(story, "r3") is ReplicaState.UP
    pulse = story.controller._fleet.replica("r3").pulse
    assert pulse.is_typical, "nobody is held against others any more"
    assert pulse.ttft.memory < 1.0, "nor is a single answer once it is switched on again"


# ---- how many, and panic


@pytest.mark.parametrize(
    ("replicas", "most"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (9, 2), (19, 2), (20, 2), (30, 3), (100, 10)]
)
def test_so_many_may_be_out_for_slowness(replicas: int, most: int) -> None:
    assert most_slow(replicas, 0.1) == most


def test_the_slowest_goes_first_and_the_cap_holds() -> None:
    story = play(fleet(7))
    traffic = Traffic(story, per_s=35.0)
    traffic.until(20.0)
    traffic.times |= {"r2": 3.0, "r5": 6.0}
    traffic.until(40.0)
    assert [n for n in range(1, 8) if state(story, f"r{n}") is ReplicaState.EJECTED] == [5]


def test_with_less_than_half_well_the_slow_are_used_all_the_same() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.times["r3"] = 3.0
    traffic.until(25.0)
    for name in ("r1", "r2", "r4"):
        story.fails(name)
    assert story.pool("p").panic
    assert state(story, "r3") is ReplicaState.EJECTED
    traffic.until(27.0)
    assert traffic.share("r3", 25.0) > 0.2
    for name in ("r1", "r2", "r4"):
        story.recovers(name)


# ---- canaries, and the way back


def test_one_request_every_five_seconds_goes_to_one_that_is_out() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=45.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.until(out_at + 28.0)
    sent = [at for at, name in traffic.sent if name == "r3" and at > out_at]
    assert len(sent) == 5
    assert all(later - earlier >= 4.0 for earlier, later in pairwise(sent))


def test_canaries_are_no_more_than_one_request_in_200() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=10.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.until(out_at + 100.0)
    sent = [at for at, name in traffic.sent if name == "r3" and at > out_at]
    assert 4 <= len(sent) <= 6
    assert min(later - earlier for earlier, later in pairwise(sent)) >= 19.9


def test_canaries_are_of_the_least_urgent_tier_if_it_comes_in_time() -> None:
    story = play(fleet(6, tier("fast", 0), tier("batch", 5)))
    traffic = Traffic(story, per_s=30.0, tier="batch")
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.how = {"tier": "fast"}
    traffic.until(out_at + 9.0)
    assert not [at for at, name in traffic.sent if name == "r3" and at > out_at]
    traffic.until(out_at + 12.0)
    assert len([at for at, name in traffic.sent if name == "r3" and at > out_at]) == 1, "nobody else came"


def test_no_canary_is_a_request_that_was_with_a_replica_that_broke() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.stop()
    story.arrives("a", body_hash=7).sent("a").finishes("a", End.RESET, body_hash=7)
    traffic.until(out_at + 7.0)
    before = story.replica("r3").in_flight
    story.arrives("b", body_hash=7)
    assert story.replica("r3").in_flight == before
    story.arrives("c", body_hash=8)
    assert story.replica("r3").in_flight == before + 1


def test_one_that_is_still_slow_stays_out_for_longer_each_time() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=12.0)
    traffic.times["r3"] = 3.0
    traffic.until(300.0)
    assert state(story, "r3") is ReplicaState.EJECTED
    assert story.replica("r3").health.ejections[0][1] >= 4
    (last,) = story.replica("r3").health.ejections
    assert last[0] == "slow-ttft"
    assert traffic.share("r3", 60.0) < 0.03, "canaries only"


def canaries_until_back(traffic: Traffic, replica: str) -> int:
    """It is well from now on; how many requests it is given until it is back."""
    began_at, traffic.times = traffic.story.now, {}
    while state(traffic.story, replica) is ReplicaState.EJECTED:
        traffic.until(traffic.story.now + 0.25)
    return len([at for at, name in traffic.sent if name == replica and began_at < at <= traffic.story.now])


def test_one_that_is_well_again_is_back_before_its_time_after_four_canaries() -> None:
    traffic = Traffic(play(fleet(6)), per_s=40.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    assert canaries_until_back(traffic, "r3") == 4
    assert traffic.story.now < out_at + 15.0, "and it is tried more often once one of them was not slow"


def test_the_second_time_eight_are_asked_for() -> None:
    traffic = Traffic(play(fleet(6)), per_s=40.0)
    for canaries in (4, 8):
        traffic.times["r3"] = 3.0
        traffic.until_out("r3")
        assert canaries_until_back(traffic, "r3") == canaries


def test_a_slow_canary_takes_back_what_those_before_it_have_proven() -> None:
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


def test_it_is_back_before_its_time_where_the_least_urgent_tier_never_comes() -> None:
    """Canaries that were like the others do not put off the next one."""
    traffic = Traffic(play(fleet(6, tier("fast", 0), tier("batch", 5))), per_s=40.0, tier="fast")
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    canaries_until_back(traffic, "r3")
    assert traffic.story.now < out_at + 25.0


def test_canaries_that_were_called_off_prove_nothing() -> None:
    """Whoever leaves as soon as it is late, or is hedged, has not seen that it was not much later."""
    traffic = Traffic(play(fleet(6)), per_s=40.0)
    story = traffic.story
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.until(story.now + 1.0)
    traffic.times["r3"] = math.inf
    while story.now < out_at + 60.0:
        traffic.until(story.now + 0.02)
        for attempt in list(story.controller._attempts.values()):
            if attempt.replica.spec.name == "r3" and story.now > attempt.opened_at + 0.12:
                name = story._names[attempt.live.ask.id]
                story.leaves(name).cancelled(name)
        assert state(story, "r3") is ReplicaState.EJECTED
    assert traffic.share("r3", out_at + 1.0) > 0.0


def test_two_that_are_out_are_tried_in_turns() -> None:
    """Where there are requests for one canary at a time only."""
    story = play(fleet(8))
    traffic = Traffic(story, per_s=10.0)
    traffic.times |= {"r2": 3.0, "r5": 3.0}
    out_at = max(traffic.until_out("r2"), traffic.until_out("r5"))
    traffic.until(out_at + 25.0)
    traffic.times.pop("r5")
    traffic.until(out_at + 150.0)
    assert state(story, "r2") is ReplicaState.EJECTED
    assert state(story, "r5") is ReplicaState.UP


def test_one_that_was_slow_comes_back_with_half_of_its_slots() -> None:
    traffic = Traffic(play(fleet(6, slow_start_s=20.0)), per_s=30.0)
    story = traffic.story
    traffic.times["r3"] = 3.0
    traffic.until_out("r3")
    canaries_until_back(traffic, "r3")
    back_at = story.now
    assert story.replica("r3").slots == 4
    traffic.until(back_at + 11.0)
    assert story.replica("r3").slots == 8


def test_one_that_fills_up_is_not_judged_by_its_tokens() -> None:
    """Nobody has learned what a token takes with so few answers under way."""
    story = play(fleet(5, slow_start_s=20.0))
    story.at(1.0).drains("r4").at(2.0).drains("r4", on=False)
    for number in range(150):
        story.at(2.0 + number * 0.1).whatever().arrives(f"q{number}")
        (replica,) = (c.replica for c in story._said if isinstance(c, Dispatch))
        story.sent(f"q{number}").after(0.001).first_token(f"q{number}")
        story.after(0.09 if replica == "r4" else 0.03).finishes(f"q{number}", output_tokens=100)
    assert story.replica("r4").health.itl_excess > math.log(2.0)
    assert state(story, "r4") is ReplicaState.UP


def test_the_time_out_grows_and_is_capped_and_health_is_forgiving() -> None:
    pulse, now, times = Pulse(), 100.0, []
    for _ in range(12):
        pulse.put_out(Out.SLOW_TTFT, "", EJECTION, now)
        times.append(pulse.until - now)
        pulse.take_back(now)
    assert times == [30.0, 60.0, 90.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0, 300.0, 300.0]
    for second in range(361):
        pulse.mend(EJECTION, now + second)
    assert pulse.count == 0


def test_one_that_is_out_when_its_breaker_opens_is_judged_anew() -> None:
    """Else nobody would be sent there to close it: what is out gets canaries, what is probed a slot of its own."""
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


# ---- silent ones


def test_a_replica_that_says_nothing_for_five_seconds_is_out() -> None:
    story = play(fleet(12, slots=64))
    traffic = Traffic(story, per_s=30.0)
    traffic.until(10.0)
    traffic.times["r7"] = math.inf
    traffic.until(17.5)
    assert story.replica("r7").health.out == "stalled"
    traffic.until(40.0)
    assert traffic.share("r7", 18.0) == 0.0, "it has enough to answer"


def test_it_is_back_as_soon_as_something_is_heard() -> None:
    story = play(fleet(3))
    story.arrives("a").sent("a").at(8.0)
    assert story.replica("r1").health.out == "stalled"
    assert "nothing heard for" in story.replica("r1").health.why
    story.first_token("a").at(9.5)
    assert state(story, "r1") is ReplicaState.UP


def test_what_an_older_answer_says_is_no_word_of_the_canary() -> None:
    traffic = Traffic(play(fleet(6)), per_s=40.0)
    story = traffic.story
    traffic.times["r3"] = 3.0
    traffic.until(5.0)
    while not (old := [a for a in story.controller._attempts.values() if a.replica.spec.name == "r3"]):
        traffic.until(story.now + 0.05)
    name = story._names[old[0].live.ask.id]
    traffic._due = [due for due in traffic._due if due[1] != name]
    out_at = traffic.until_out("r3")
    traffic.times["r3"] = math.inf
    story.first_token(name)
    for tokens in range(1, 25):
        traffic.until(out_at + tokens).progress(name, tokens)
    assert len([at for at, replica in traffic.sent if replica == "r3" and at > out_at]) == 1


def test_one_that_hung_and_was_started_anew_is_back() -> None:
    story = play(fleet(6)).arrives("a").sent("a").at(8.0)
    assert story.replica("r1").health.out == "stalled"
    story.fails("r1").cancelled("a").served("a").recovers("r1").whatever()
    for number in range(6):
        story.arrives(f"q{number}").served(f"q{number}")
    assert state(story, "r1") is ReplicaState.UP
    story.at(10.0).arrives("b").sent("b").after(8.0)
    assert [r.health.out for r in story.pool("p").replicas].count("stalled") == 1, "its silence is nobody's measure"


def test_one_that_is_out_for_slowness_does_not_come_back_for_a_word() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.times["r3"] = math.inf
    traffic.until(out_at + 25.0)
    assert story.replica("r3").health.out == "slow-ttft"
    assert len([at for at, name in traffic.sent if name == "r3" and at > out_at]) == 1, "it has enough to answer"


def test_idle_is_not_silent_nor_is_one_whose_clients_do_not_read() -> None:
    story = play(fleet(3))
    story.arrives("a").served("a").at(60.0).arrives("b").after(0.5)
    assert state(story, "r2") is ReplicaState.UP
    story.served("b").arrives("c").sent("c").first_token("c").pauses("c").after(60.0)
    assert state(story, "r3") is ReplicaState.UP
    story.resumes("c").after(4.0)
    assert state(story, "r3") is ReplicaState.UP
    story.after(3.0)
    assert story.replica("r3").health.out == "stalled"


def test_silence_adds_up_over_requests_that_are_called_off() -> None:
    """Timeouts shorter than the limit do not hide a replica that hangs."""
    story = play(fleet(3))
    for number in range(9):
        name = f"q{number}"
        story.arrives(name).sent(name)
        (replica,) = (r.name for r in story.pool("p").replicas if r.in_flight)
        if replica == "r1":
            story.after(2.0).leaves(name).cancelled(name)
        else:
            story.after(0.1).served(name)
    assert story.replica("r1").health.out == "stalled"


def test_where_answers_are_rare_more_patience_is_due() -> None:
    """Eight times the p99 of the gap: whole answers that take four seconds each are not silence."""
    story = play(fleet(3))
    for number in range(40):
        story.whatever().arrives(f"q{number}", stream=False).sent(f"q{number}").after(4.0)
        story.finishes(f"q{number}", output_tokens=50)
    story.arrives("long", stream=False).sent("long").after(20.0)
    assert all(state(story, f"r{n}") is ReplicaState.UP for n in (1, 2, 3))
    story.after(20.0)
    assert any(state(story, f"r{n}") is ReplicaState.EJECTED for n in (1, 2, 3))


def test_the_silent_lie_outside_the_cap_and_panic_does_not_use_them() -> None:
    story = play(fleet(6, slots=64))
    traffic = Traffic(story, per_s=30.0)
    traffic.until(10.0)
    traffic.times = dict.fromkeys(("r1", "r2", "r3", "r4"), math.inf)
    traffic.until(20.0)
    assert [n for n in range(1, 7) if state(story, f"r{n}") is ReplicaState.EJECTED] == [1, 2, 3, 4]
    traffic.until(30.0)
    assert {name for at, name in traffic.sent if at > 20.0} == {"r5", "r6"}


def test_no_pool_is_emptied_even_if_all_are_silent() -> None:
    story = play(fleet(1)).arrives("a").sent("a").after(10.0)
    assert story.replica("r1").health.out == "stalled"
    story.whatever().arrives("b")
    assert [type(c) for c in story._said] == [Dispatch]


# ---- whatever happens


@given(
    replicas=st.integers(1, 32),
    slowdown=st.sampled_from([1.05, 2.0]),
    max_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    panic=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 10_000),
)
@settings(STEADY, max_examples=30)
def test_no_ejection_empties_a_pool_and_the_cap_holds(
    replicas: int, slowdown: float, max_share: float, panic: float, seed: int
) -> None:
    """Any latencies, silences, breakers and drains, for a minute."""
    random = Random(seed)
    rules = fleet(replicas, slowdown=slowdown, max_share=max_share, panic_share=panic, time_s=7.0, max_time_s=20.0)
    story = play(rules)
    made = story.controller._fleet.pool("p")
    assert made is not None
    members = list(made.replicas.values())
    paces = [0.0] * 8 + [0.5, 1.5]
    pace = {replica: random.choice(paces) for replica in members}
    ejected = 0
    for second in range(60):
        story.at(float(second))
        for replica in members:
            if random.random() < 0.02:
                pace[replica] = random.choice(paces)
            if random.random() < 0.01:
                story.drains(replica.spec.name, on=not replica.drained)
            if random.random() < 0.02:
                if random.random() < 0.3:
                    story.fails(replica.spec.name)
                else:
                    story.recovers(replica.spec.name)
                    story.controller._fleet.ended(replica, End.COMPLETE, story.now)
            for score in (replica.pulse.ttft, replica.pulse.itl):
                for _ in range(random.choice([0, 1, 5])):
                    score.add(random.gauss(pace[replica], 0.3))
        if second % 20 == 0:
            story.arrives(f"q{second}").whatever()  # of which nothing is ever heard
        story.controller._cool([], story.now)
        meant = [replica for replica in members if not replica.drained]
        slow = [replica for replica in meant if replica.pulse.out in (Out.SLOW_TTFT, Out.SLOW_ITL)]
        ejected += len(slow)
        assert len(slow) <= most_slow(len(meant), max_share) or len(meant) < replicas
        assert made.alive == any(replica.breaker.state is not ReplicaState.DOWN for replica in meant)
        assert made.slots == sum(replica.slots for replica in members)
    assert ejected or replicas < 20, "it has something to say"
