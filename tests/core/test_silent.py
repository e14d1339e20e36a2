"""Ejection: a replica that owes an answer and is silent is ejected, beyond any cap; a token brings it back."""

import math

from gateway.core.commands import Dispatch
from gateway.core.sample import Sample
from gateway.core.snapshot import ReplicaState

from .playbook import Story, cancel, commit, dispatch, play
from .steady import Traffic, fleet, state


def test_replica_silent_for_five_seconds_is_ejected() -> None:
    story = play(fleet(12, slots=64))
    traffic = Traffic(story, per_s=30.0)
    traffic.until(10.0)
    traffic.times["r7"] = math.inf
    traffic.until(17.5)
    assert story.replica("r7").health.out == "stalled"
    traffic.until(40.0)
    assert traffic.share("r7", 18.0) == 0.0, "it has enough to answer"


def test_time_in_which_the_gateway_stood_still_is_not_a_replicas_silence() -> None:
    story = play(fleet(3)).arrives("a").sent("a").at(3.0)
    story.now = 11.0  # nothing was heard, and no alarm rang, for eight seconds
    story.controller.lagged(8.0, story.now)
    story.at(12.5)
    assert story.replica("r1").health.out is None
    story.at(16.0)
    assert story.replica("r1").health.out == "stalled"


def test_silent_replica_is_back_at_its_first_token() -> None:
    story = play(fleet(3))
    story.arrives("a").sent("a").at(8.0)
    assert story.replica("r1").health.out == "stalled"
    assert story.replica("r1").health.why.startswith("streams without a token: nothing for 6.0 s of 1 requests")
    story.first_token("a").at(9.5)
    assert state(story, "r1") is ReplicaState.UP


def test_answer_begun_before_the_probe_does_not_end_the_silence() -> None:
    traffic = Traffic(play(fleet(6)), per_s=40.0)
    story = traffic.story
    traffic.times["r3"] = 3.0
    traffic.until(5.0)
    while not (old := [a for a in story.controller.state.attempts.values() if a.replica.spec.name == "r3"]):
        traffic.until(story.now + 0.05)
    name = story.names[old[0].state.request.id]
    traffic.hang(name)
    out_at = traffic.until_out("r3")
    traffic.times["r3"] = math.inf
    story.first_token(name)
    for tokens in range(1, 25):
        traffic.until(out_at + tokens).progress(name, tokens)
    assert len([at for at, replica in traffic.sent if replica == "r3" and at > out_at]) == 1


def test_silent_replica_is_back_after_its_restart() -> None:
    story = play(fleet(6)).arrives("a").sent("a").at(8.0)
    assert story.replica("r1").health.out == "stalled"
    story.fails("r1").cancelled("a").served("a").recovers("r1").whatever()
    for number in range(6):
        story.arrives(f"q{number}").served(f"q{number}")
    assert state(story, "r1") is ReplicaState.UP
    story.at(10.0).arrives("b").sent("b").after(8.0)
    assert [r.health.out for r in story.pool("p").replicas].count("stalled") == 1, "its silence is nobody's measure"


def test_replica_ejected_for_slowness_is_not_probed_as_a_silent_one() -> None:
    story = play(fleet(6))
    traffic = Traffic(story, per_s=30.0)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.times["r3"] = math.inf
    traffic.until(out_at + 25.0)
    assert story.replica("r3").health.out == "slow-ttft"
    assert len([at for at, name in traffic.sent if name == "r3" and at > out_at]) == 1, "it has enough to answer"


def test_idle_replica_and_replica_with_slow_readers_are_not_silent() -> None:
    story = play(fleet(3))
    story.arrives("a").served("a").at(60.0).arrives("b").after(0.5)
    assert state(story, "r2") is ReplicaState.UP
    story.served("b").arrives("c").sent("c").first_token("c").pauses("c").after(60.0)
    assert state(story, "r3") is ReplicaState.UP
    story.resumes("c").after(4.0)
    assert state(story, "r3") is ReplicaState.UP
    story.after(3.0)
    assert story.replica("r3").health.out == "stalled"


def test_silence_of_a_replica_adds_up_over_cancelled_requests() -> None:
    """Timeouts shorter than the limit do not hide a hung replica."""
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


def test_silence_limit_is_longer_for_pools_with_rare_tokens() -> None:
    """The limit is eight times the p99 of gaps."""
    story = play(fleet(3))
    for number in range(40):
        story.whatever().arrives(f"q{number}").sent(f"q{number}").after(4.0)
        story.first_token(f"q{number}").finishes(f"q{number}", output_tokens=1)
    story.arrives("long").sent("long").after(20.0)
    assert all(state(story, f"r{n}") is ReplicaState.UP for n in (1, 2, 3))
    story.after(20.0)
    assert any(state(story, f"r{n}") is ReplicaState.EJECTED for n in (1, 2, 3))


# ---- unstreamed answers


def counts(story: Story, name: str, tokens: int, running: int = 1) -> Story:
    """The metrics page of a replica was read."""
    return story.observes(name, Sample(waiting=0, running=running, generated_tokens=tokens))


def test_silence_of_an_unstreamed_answer_is_no_evidence() -> None:
    story = play(fleet(3)).arrives("a", stream=False).sent("a").expect(dispatch("r1")).at(600.0).expect()
    assert story.replica("r1").state is ReplicaState.UP


def test_unstreamed_answer_whose_tokens_the_engine_counts_is_not_silent() -> None:
    story = play(fleet(3)).arrives("a", stream=False).sent("a").expect(dispatch("r1"))
    for second in range(1, 41):
        counts(story.at(float(second)), "r1", 30 * second)
    assert story.expect().replica("r1").state is ReplicaState.UP


def test_unstreamed_answers_do_not_lengthen_the_silence_that_streams_may_have() -> None:
    story = play(fleet(3))
    for number in range(40):
        story.whatever().arrives(f"q{number}", stream=False).sent(f"q{number}").after(4.0)
        story.finishes(f"q{number}", output_tokens=50)
    story.arrives("a").sent("a").after(8.0)
    assert [r.health.out for r in story.pool("p").replicas].count("stalled") == 1


def test_unstreamed_request_is_sent_elsewhere_if_the_engine_counts_no_more_tokens() -> None:
    story = play(fleet(3)).arrives("a", stream=False).sent("a").expect(dispatch("r1"))
    for second in range(1, 4):
        counts(story.at(float(second)), "r1", 30 * second)
    for second in range(4, 12):
        counts(story.at(float(second)), "r1", 90)
        if story.replica("r1").health.out:
            break
    assert story.replica("r1").health.why.startswith("requests running, and no new token in the engine's metrics")
    story.expect(cancel()).cancelled("a").expect(dispatch("r2"))
    counts(story.after(1.0), "r1", 91).after(1.5)
    assert story.replica("r1").state is ReplicaState.UP, "tokens that it counts are life"


def test_count_that_stands_is_no_silence_while_no_scrape_is_answered_or_nothing_runs() -> None:
    story = play(fleet(3)).arrives("a", stream=False).sent("a").expect(dispatch("r1"))
    counts(story.at(1.0), "r1", 30).at(60.0)
    assert story.replica("r1").state is ReplicaState.UP
    for second in range(61, 90):
        counts(story.at(float(second)), "r1", 30, running=0)  # its client reads slowly: the engine has done its part
    assert story.replica("r1").state is ReplicaState.UP


def test_tokens_counted_by_the_engine_are_life_of_a_replica_whose_streams_are_silent() -> None:
    story = play(fleet(3)).arrives("a").sent("a").expect(dispatch("r1"))
    for second in range(1, 41):
        counts(story.at(float(second)), "r1", 30 * second)
    assert story.replica("r1").state is ReplicaState.UP


def test_silent_replicas_do_not_count_for_the_ejection_cap_and_stay_out_in_panic() -> None:
    story = play(fleet(6, slots=64))
    traffic = Traffic(story, per_s=30.0)
    traffic.until(10.0)
    traffic.times = dict.fromkeys(("r1", "r2", "r3", "r4"), math.inf)
    traffic.until(20.0)
    assert [n for n in range(1, 7) if state(story, f"r{n}") is ReplicaState.EJECTED] == [1, 2, 3, 4]
    traffic.until(30.0)
    assert {name for at, name in traffic.sent if at > 20.0} == {"r5", "r6"}


def test_no_pool_is_emptied_even_if_all_replicas_are_silent() -> None:
    story = play(fleet(1)).arrives("a").sent("a").after(10.0)
    assert story.replica("r1").health.out == "stalled"
    story.whatever().arrives("b")
    assert [type(c) for c in story.commands] == [Dispatch]


# ---- what waits there


def test_a_request_that_waits_at_a_silent_replica_is_sent_elsewhere() -> None:
    story = play(fleet(3)).arrives("a").sent("a").expect(dispatch("r1")).at(8.0).expect(cancel())
    assert story.replica("r1").health.out == "stalled"
    story.cancelled("a").expect(dispatch("r2")).sent("a").first_token("a").expect(commit())
    assert story.replica("r1").in_flight == 0


def test_an_answer_that_has_begun_stays_with_a_silent_replica() -> None:
    story = play(fleet(3)).arrives("a").sent("a").first_token("a").whatever().at(20.0).expect()
    assert story.replica("r1").health.out == "stalled"


def test_a_whole_answer_is_sent_elsewhere_from_a_replica_whose_streams_are_silent_too() -> None:
    story = play(fleet(2)).arrives("whole", stream=False).sent("whole").expect(dispatch("r1"))
    story.arrives("other").sent("other").expect(dispatch("r2"))
    story.arrives("stream").sent("stream").expect(dispatch("r1")).first_token("stream").first_token("other").whatever()
    for step in range(1, 101):
        story.at(step / 10).progress("other", step)
    story.expect(cancel("whole"))
    assert story.replica("r1").health.out == "stalled"
    story.cancelled("whole").expect(dispatch("r2")).sent("whole")


def test_request_is_moved_from_a_silent_replica_only_once() -> None:
    story = play(fleet(3)).arrives("a").sent("a").at(8.0).whatever()
    story.cancelled("a").expect(dispatch("r2")).sent("a").at(20.0).expect()
    assert story.replica("r2").health.out == "stalled"


def test_silent_replica_loses_only_as_many_requests_as_others_have_room_for() -> None:
    story = play(fleet(3, slots=2))
    for number in range(6):
        story.arrives(f"q{number}").sent(f"q{number}")
    for number in (1, 2, 4, 5):
        story.first_token(f"q{number}")
    story.finishes("q1").whatever()
    for second in range(1, 21):
        story.at(0.5 * second)
        for number in (2, 4, 5):
            story.progress(f"q{number}", second)
        if story.replica("r1").health.out == "stalled":
            break
    story.expect(cancel("q0"))
    story.cancelled("q0").expect(dispatch("r2", "q0"))
