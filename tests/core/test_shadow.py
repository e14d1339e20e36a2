"""In shadow, and with admission off, learned facts make no request wait and refuse none."""

import pytest

from gateway.core.fleet.concurrency_limit import START
from gateway.core.policy import AdmissionMode, AdmissionSpec, Policy
from gateway.core.pool_spec import Health
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.policy.builtin import builtin

from .made import SHADOW, policy, pool, tier
from .playbook import Story, dispatch, ended, play, refuse

OFF = AdmissionSpec(AdmissionMode.OFF)
MODES = pytest.mark.parametrize("mode", [SHADOW, OFF], ids=["shadow", "off"])
LEARNED = round(START)
KV_HALF_FULL = Sample(kv_fraction=0.5, waiting=0, running=1)


def flooded(story: Story, count: int, tier_name: str | None = None, prompt: int = 100) -> Story:
    """This many requests arrive at once."""
    for number in range(count):
        story.arrives(f"{tier_name or 'std'}{number}", tier=tier_name, prompt=prompt)
    return story


def alone(mode: AdmissionSpec, **more: object) -> Policy:
    return policy(pool("p", "r1", "r2", slots=None, **more), tier("std", admission=mode))


# ---- nothing waits


def test_policy_of_serve_replica_runs_200_requests_at_once() -> None:
    rules = builtin(["http://127.0.0.1:1"])
    (replica,) = rules.pools["default"].replicas
    story = play(rules)
    for number in range(200):
        story.arrives(f"a{number}", model="any", max_tokens=None).expect(dispatch(replica.name))
    assert (story.pool("default").in_flight, story.pool("default").queued) == (200, 0)


@MODES
def test_learned_slots_do_not_limit_a_tier_without_enforced_admission(mode: AdmissionSpec) -> None:
    story = flooded(play(alone(mode)), 10 * LEARNED)
    assert (story.pool("p").in_flight, story.pool("p").queued) == (10 * LEARNED, 0)
    assert story.replica("r1").in_flight == story.replica("r2").in_flight


@MODES
def test_limit_on_unread_prompts_does_not_apply_without_enforced_admission(mode: AdmissionSpec) -> None:
    story = play(alone(mode)).observes("r1", Sample(waiting=0, running=0)).observes("r2", Sample(waiting=0, running=0))
    flooded(story, 20, prompt=10_000)
    assert (story.pool("p").in_flight, story.pool("p").queued) == (20, 0)


@MODES
def test_full_kv_cache_does_not_limit_a_tier_without_enforced_admission(mode: AdmissionSpec) -> None:
    story = play(policy(pool("p", "r1", slots=None), tier("std", admission=mode)))
    story.arrives("a", prompt=1000).observes("r1", KV_HALF_FULL).arrives("b", prompt=1000)
    assert story.replica("r1").kv_capacity_tokens == 2000
    story.whatever().arrives("c", prompt=1000).expect(dispatch("r1"))


@MODES
def test_slow_start_without_enforced_admission_only_prefers_other_replicas(mode: AdmissionSpec) -> None:
    rules = alone(mode, health=Health(slow_start_s=30.0, ejection=None))
    story = play(rules).fails("r1").whatever()
    flooded(story, 40).whatever()
    story.at(6.0).recovers("r1").arrives("probe").expect(dispatch("r1")).served("probe").whatever()
    for number in range(20):
        story.arrives(f"b{number}")
    in_flight = [story.replica(name).in_flight for name in ("r1", "r2")]
    assert sum(in_flight) == 60
    assert in_flight[0] == 6, "about a tenth of what the other one has"
    story.fails("r2").whatever().arrives("c").expect(dispatch("r1"))


def test_reserve_of_learned_slots_does_not_limit_a_tier_in_shadow() -> None:
    rules = policy(
        pool("p", "r1", slots=None, reserve=(("premium", 1.0),)), tier("std", admission=SHADOW), tier("premium")
    )
    flooded(play(rules), 3).expect(*(dispatch("r1", of=f"std{number}") for number in range(3)))


# ---- what is written holds


@MODES
def test_configured_slots_hold_in_every_admission_mode(mode: AdmissionSpec) -> None:
    story = play(policy(pool("p", "r1", slots=2), tier("std", admission=mode)))
    flooded(story, 3).expect(dispatch("r1", of="std0"), dispatch("r1", of="std1"))
    story.finishes("std0", AttemptOutcome.FAILED).expect(
        refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR), dispatch("r1", of="std2")
    )


def test_reserve_of_configured_slots_limits_a_tier_in_shadow() -> None:
    rules = policy(
        pool("p", "r1", slots=2, reserve=(("premium", 0.5),)), tier("std", admission=SHADOW), tier("premium")
    )
    story = flooded(play(rules), 2).expect(dispatch("r1", of="std0"))
    story.arrives("p", tier="premium").expect(dispatch("r1"))


def test_replica_with_an_open_breaker_gets_no_request_in_shadow() -> None:
    story = flooded(play(alone(SHADOW)).fails("r1").whatever(), 100)
    assert story.replica("r1").in_flight == 0
    assert story.replica("r2").in_flight == 100


def test_half_open_breaker_lets_one_request_through_in_shadow() -> None:
    story = play(policy(pool("p", "r1", slots=None), tier("std", admission=SHADOW))).fails("r1").at(6.0)
    flooded(story, 3).expect(dispatch("r1", of="std0"))


def test_drained_replica_gets_no_request_in_shadow() -> None:
    story = flooded(play(alone(SHADOW)).drains("r1"), 100)
    assert story.replica("r1").in_flight == 0


# ---- beside tiers that are enforced


def shared(shadow_priority: int) -> Policy:
    return policy(pool("p", "r1", slots=None), tier("std"), tier("shadow", shadow_priority, admission=SHADOW))


def test_learned_slots_limit_an_enforced_tier_beside_one_in_shadow() -> None:
    story = flooded(flooded(play(shared(-1)), LEARNED, "shadow").whatever(), 1).expect()
    story.arrives("more", tier="shadow").expect(dispatch("r1"))
    assert story.pool("p").queued == 1


@pytest.mark.parametrize("priority", [0, 1])
def test_tier_in_shadow_does_not_overtake_requests_of_equal_priority(priority: int) -> None:
    story = flooded(flooded(play(shared(priority)), LEARNED, "shadow").whatever(), 2).expect()
    story.arrives("more", tier="shadow").expect(dispatch("r1", of="std0"), dispatch("r1", of="more"))
    story.arrives("again", tier="shadow").expect(dispatch("r1", of="std1"), dispatch("r1", of="again"))
    assert story.pool("p").queued == 0


# ---- what is learned meanwhile, for the day on which it is enforced


def test_slots_are_learned_in_shadow_from_requests_that_run_beyond_them() -> None:
    story = flooded(play(policy(pool("p", "r1", slots=None), tier("std", admission=SHADOW))), 200)
    for number in range(150):
        story.sent(f"std{number}").first_token(f"std{number}")
    story.after(1.5).observes("r1", Sample())
    assert story.pool("p").slots == 150, "so many run, and the engine is behind with the others"


def test_learned_slots_stay_unchanged_in_shadow_while_they_suffice() -> None:
    story = flooded(play(policy(pool("p", "r1", slots=None), tier("std", admission=SHADOW))), LEARNED)
    for number in range(LEARNED):
        story.sent(f"std{number}").first_token(f"std{number}")
    story.after(1.5).observes("r1", Sample())
    assert story.pool("p").slots == LEARNED


# ---- where they go


def test_router_picks_the_fewest_unread_tokens_among_replicas_beyond_learned_slots() -> None:
    story = flooded(play(alone(SHADOW)), 4 * LEARNED).whatever()
    story.arrives("long", prompt=5000)
    long_at = "r1" if story.replica("r1").unprefilled_tokens > 5000 else "r2"
    other = "r2" if long_at == "r1" else "r1"
    story.whatever()
    for number in range(10):
        story.arrives(f"after{number}", prompt=200).expect(dispatch(other))


def test_slow_replica_has_as_many_requests_in_flight_and_gets_fewer_in_total_in_shadow() -> None:
    story, sent = play(alone(SHADOW)), {"r1": 0, "r2": 0}
    takes_s = {"r1": 1.0, "r2": 4.0}
    ends: list[tuple[float, str]] = []
    for number in range(400):
        now = 0.05 * number
        while ends and min(ends)[0] <= now:
            at, name = ends.pop(ends.index(min(ends)))
            story.at(max(at, story.now)).finishes(name, output_tokens=10)
        story.at(now).arrives(name := f"a{number}").sent(name).first_token(name)
        replica = story.records[name].replica if name in story.records else _replica_of(story, name)
        assert replica is not None
        sent[replica] += 1
        ends.append((now + takes_s[replica], name))
    assert sent["r2"] < 0.35 * sum(sent.values())


def _replica_of(story: Story, name: str) -> str:
    state = story.controller.state.requests[story.ids[name]]
    assert state.replica is not None
    return state.replica.spec.name
