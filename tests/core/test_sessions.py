"""Sessions go to their home; a strict session goes nowhere else."""

from collections import Counter
from dataclasses import replace

from gateway.core.policy import Model, Policy
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.sessions import LOAD_SPREAD, Session, draw, key_of, most_in_flight
from gateway.core.snapshot import ReplicaState

from .made import SHADOW, policy, pool, tier
from .playbook import Story, commit, dispatch, ended, play, refuse
from .steady import Traffic, fleet, state
from .test_affinity import prefix

NAMES = ("r1", "r2", "r3", "r4")


def session(name: str) -> Session:
    return Session(name, key_of(f"acme\0{name}"))


def four(slots: int = 8, **more: object) -> Policy:
    return policy(pool("p", *NAMES, slots=slots, **more), tier("std"))


def home_of(name: str, replicas: tuple[str, ...] = NAMES) -> str:
    """The home of a session by its hash alone."""
    return max(replicas, key=lambda replica: draw(session(name).key, key_of(replica)))


def down(story: Story, replica: str) -> Story:
    for _ in range(3):
        story.observes(replica, Sample(healthy=False))
    return story.whatever()


def where(story: Story, name: str, **how: object) -> str:
    """The replica that gets a request of this session."""
    story.arrives(f"{name} {len(story.ids)}", session=session(name), **how)
    (attempt,) = list(story.controller.state.attempts.values())[-1:]
    return attempt.replica.spec.name


def test_independent_idle_gateways_send_a_session_to_the_same_replica() -> None:
    for number in range(40):
        name = f"talk {number}"
        assert {where(play(four()), name) for _ in range(3)} == {home_of(name)}


def test_reserved_slot_is_given_up_when_a_request_in_shadow_exceeds_the_slots_of_its_home() -> None:
    at = pool("p", "r1", "r2", slots=None, reserve=(("premium", 0.5),), strict_sessions=True)
    story = play(policy(at, tier("premium", admission=SHADOW), tier("free")))
    for number in range(32):
        story.arrives(f"f{number}", tier="free").whatever()
    story.arrives("f32", tier="free").expect()  # the other 32 of 64 slots are reserved
    name = next(name for name in map(str, range(9)) if home_of(name, ("r1", "r2")) == "r1")
    for number in range(16):
        story.arrives(f"p{number}", tier="premium", session=session(name)).expect(dispatch("r1"))
    story.arrives("p16", tier="premium", session=session(name)).expect(dispatch("r1"), dispatch("r2", of="f32"))


def test_sessions_are_spread_evenly() -> None:
    homes = Counter(home_of(f"talk {number}") for number in range(4000))
    assert all(900 < count < 1100 for count in homes.values())


def test_removed_replica_moves_only_its_own_sessions() -> None:
    for number in range(200):
        name = f"talk {number}"
        if home_of(name) != "r4":
            assert home_of(name, NAMES[:3]) == home_of(name)


def test_a_session_moves_when_its_replica_dies_without_an_error() -> None:
    story = play(four())
    first = home_of("talk")
    down(story, first)
    rest = tuple(name for name in NAMES if name != first)
    assert where(story, "talk") == home_of("talk", rest)


def test_a_session_moves_when_its_replica_drains() -> None:
    story = play(four()).drains(home_of("talk")).whatever()
    assert where(story, "talk") != home_of("talk")


def test_bounded_load_of_a_home_is_a_quarter_above_the_mean_with_the_new_request() -> None:
    assert most_in_flight(79, 4) == 25
    assert most_in_flight(80, 4) == 26
    assert most_in_flight(3, 4) == 8


def test_session_passes_over_a_home_above_its_bounded_load() -> None:
    story = play(four(slots=64))
    homes = Counter(where(story, "hot") for _ in range(80))
    assert homes[home_of("hot")] <= (1 + LOAD_SPREAD) * 80 / 4 + 1


def test_a_session_stays_where_its_prompt_is_cached_if_its_home_has_more_to_do() -> None:
    story = play(four())
    home = home_of("talk")
    other = next(name for name in NAMES if name != home)
    found = story.controller.state.fleet.replica(other)
    assert found is not None
    begins = prefix(1, 2, 3, 4)
    found.cache.sent(begins)
    assert where(story, "talk") == home
    assert where(story, "talk", prefix=begins, prompt=begins.size // 4, prompt_bytes=begins.size) == other


def where_with(queried: int, cached: int) -> str:
    """The replica that gets a prompt of twenty blocks, if all but its home have `cached` of them.

    100,000 tokens were sent to each replica, whose engine counts `queried`: the rest came from other gateways.
    """
    story = play(four())
    begins = prefix(*range(1, 21))
    for name in NAMES:
        found = story.controller.state.fleet.replica(name)
        assert found is not None
        found.cache.evidence.counted(0, 0)
        found.cache.evidence.sent(100_000, 0)
        found.cache.evidence.counted(queried, 0)
        if name != home_of("talk"):
            found.cache.sent(prefix(*range(1, cached + 1)))
    return where(story, "talk", prefix=begins, prompt=begins.size // 4, prompt_bytes=begins.size)


def test_home_is_judged_by_its_prefix_index_alone_without_other_gateways() -> None:
    """A replica that caches all but a block of a prompt wins over a home without it, unless other gateways use it,
    too."""
    homes = {}
    for queried in (400_000, 100_000):
        homes[queried] = where_with(queried, cached=19)
    assert homes[100_000] != home_of("talk")
    assert homes[400_000] != home_of("talk"), "three quarters of a prompt are less than nineteen blocks of twenty"


def test_home_is_assumed_to_have_the_share_of_prompts_that_other_gateways_sent() -> None:
    assert where_with(400_000, cached=10) == home_of("talk")


def test_a_strict_session_waits_for_its_home_beside_idle_replicas() -> None:
    story = play(four(slots=1, affinity=False, strict_sessions=True))
    home = home_of("talk")
    story.arrives("turn 1", session=session("talk")).expect(dispatch(home))
    story.arrives("turn 2", session=session("talk")).expect()
    story.sent("turn 1").first_token("turn 1").whatever()
    story.finishes("turn 1").expect(ended(Outcome.OK, of="turn 1"), dispatch(home, of="turn 2"))


def test_request_without_a_session_may_use_any_replica_of_a_strict_pool() -> None:
    story = play(four(slots=1, strict_sessions=True))
    for number in range(4):
        story.arrives(f"n{number}").whatever()
    assert all(replica.in_flight == 1 for replica in story.pool("p").replicas)


def test_a_strict_session_is_refused_while_its_home_is_down_and_the_error_names_both() -> None:
    story = play(four(strict_sessions=True))
    home = home_of("talk")
    down(story, home)
    story.arrives("turn 2", session=session("talk"))
    detail = f"session talk is kept at replica {home}, which is down. Try again later, or begin another session and "
    story.expect(refuse(Reason.NO_REPLICAS, detail=f"{detail}send the conversation whole."), ended(Outcome.REFUSED))


def test_the_error_names_both_if_the_home_of_a_strict_session_dies_while_it_answers() -> None:
    story = play(four(strict_sessions=True))
    home = home_of("talk")
    story.arrives("turn 1", session=session("talk")).sent("turn 1").whatever()
    down(story, home)
    story.finishes("turn 1", AttemptOutcome.CANCELLED)
    detail = f"session talk is kept at replica {home}, which is down. Try again later, or begin another session and "
    story.expect(
        refuse(Reason.UPSTREAM_UNREACHABLE, detail=f"{detail}send the conversation whole."), ended(Outcome.ERROR)
    )


def test_a_strict_session_is_refused_while_its_home_drains() -> None:
    story = play(four(strict_sessions=True)).drains(home_of("talk")).whatever()
    story.arrives("turn 2", session=session("talk")).expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))


def test_waiting_requests_of_a_strict_session_are_refused_when_its_home_dies() -> None:
    story = play(four(slots=1, strict_sessions=True))
    home = home_of("talk")
    story.arrives("turn 1", session=session("talk")).sent("turn 1").whatever()
    story.arrives("turn 2", session=session("talk")).expect()
    for _ in range(3):
        story.observes(home, Sample(healthy=False))
    assert story.records["turn 2"].why is Reason.NO_REPLICAS


def test_waiting_requests_of_a_strict_session_are_refused_when_the_only_replica_dies() -> None:
    story = play(policy(pool("p", "r1", strict_sessions=True), tier("std")))
    story.arrives("turn 1", session=session("talk")).sent("turn 1").first_token("turn 1").whatever()
    story.arrives("turn 2", session=session("talk")).arrives("other").expect()
    story.fails("r1")
    detail = "session talk is kept at replica r1, which is down. Try again later, or begin another session and "
    story.expect(
        refuse(Reason.NO_REPLICAS, of="turn 2", detail=f"{detail}send the conversation whole."),
        ended(Outcome.REFUSED, of="turn 2"),
    )
    assert story.pool("p").queued == 1, "a request without a session waits for the replica to come back"


def test_waiting_requests_of_a_strict_session_are_refused_when_its_home_falls_silent() -> None:
    rules = fleet(3, slots=1)
    names = tuple(replica.name for replica in rules.pools["p"].replicas)
    story = play(replace(rules, pools={"p": replace(rules.pools["p"], strict_sessions=True)}))
    home = home_of("talk", names)
    story.arrives("turn 1", session=session("talk")).sent("turn 1").whatever()
    story.arrives("turn 2", session=session("talk")).expect()
    while state(story, home) is ReplicaState.UP:
        assert "turn 2" not in story.records
        story.after(0.5)
    assert story.replica(home).health.out == "stalled"
    detail = f"session talk is kept at replica {home}, which is ejected. Try again later, or begin another session and "
    story.expect(
        refuse(Reason.NO_REPLICAS, of="turn 2", detail=f"{detail}send the conversation whole."),
        ended(Outcome.REFUSED, of="turn 2"),
    )


def test_waiting_requests_of_a_strict_session_go_to_the_fallback_when_their_home_drains() -> None:
    models = (Model("m", ("p",)), Model("small", ("q",)))
    own = pool("p", *NAMES, slots=1, strict_sessions=True)
    story = play(policy(own, pool("q", "s1"), tier("std", fallback="small"), models=models))
    story.arrives("turn 1", session=session("talk")).sent("turn 1").whatever()
    story.arrives("turn 2", session=session("talk")).expect()
    story.drains(home_of("talk")).expect(dispatch("s1", of="turn 2"))
    assert story.pool("p").queued == 0


def test_waiting_requests_are_refused_when_a_reload_makes_their_session_strict_with_home_down() -> None:
    story = down(play(four(slots=1)), home_of("talk"))
    for number in range(3):
        story.arrives(f"other {number}").whatever()
    story.arrives("turn 2", session=session("talk")).expect()
    story.configured(four(slots=1, strict_sessions=True))
    story.expect(refuse(Reason.NO_REPLICAS, of="turn 2"), ended(Outcome.REFUSED, of="turn 2"))


def test_a_request_that_moved_to_another_queue_is_not_served_from_its_old_one() -> None:
    models = (Model("m", ("p",)), Model("small", ("q",)))
    own = pool("p", *NAMES, slots=1, strict_sessions=True)
    story = play(policy(own, pool("q", "s1"), tier("std", fallback="small"), models=models))
    home, other = home_of("talk"), next(f"talk {n}" for n in range(99) if home_of(f"talk {n}") != home_of("talk"))
    story.arrives("elsewhere", model="small").arrives("turn 1", session=session("talk"))
    story.arrives("other 1", session=session(other)).whatever()
    story.arrives("turn 2", session=session("talk")).arrives("other 2", session=session(other)).expect()
    story.drains(home).expect()
    assert (story.pool("p").queued, story.pool("q").queued) == (1, 1)
    story.finishes("turn 1").whatever().drains(home, on=False).expect()
    story.finishes("elsewhere").expect(commit(), ended(Outcome.OK), dispatch("s1", of="turn 2", model="small"))


def test_a_strict_session_is_not_retried_at_another_replica() -> None:
    story = play(four(strict_sessions=True)).arrives("a", session=session("talk")).sent("a").whatever()
    story.finishes("a", AttemptOutcome.RESET)
    assert story.records["a"].attempts == 1
    assert story.records["a"].outcome is Outcome.ERROR


def test_a_strict_session_is_served_by_a_home_that_is_ejected_for_slowness() -> None:
    rules = fleet(6)
    story = play(replace(rules, pools={"p": replace(rules.pools["p"], strict_sessions=True)}))
    traffic = Traffic(story, per_s=30.0)
    traffic.until(20.0)
    traffic.times["r3"] = 3.0
    traffic.until(35.0)
    assert state(story, "r3") is ReplicaState.EJECTED
    homes = {home_of(f"talk {n}", tuple(f"r{n}" for n in range(1, 7))): f"talk {n}" for n in range(60)}
    story.whatever().arrives("turn", session=session(homes["r3"])).expect(dispatch("r3"))
    story.arrives("other", session=session(homes["r4"])).expect(dispatch("r4"))
    story.fails("r3").whatever()
    story.arrives("down", session=session(homes["r3"])).expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))
