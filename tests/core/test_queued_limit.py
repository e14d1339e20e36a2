"""The step limit in forecasts of queued requests, in a pool of unlike replicas."""

from __future__ import annotations

from gateway.core.policy import AdmissionSpec
from gateway.core.sample import Sample
from gateway.core.slo import Objective, Slo

from .made import policy, pool, tier
from .playbook import Story, play

STEP_S = {"r1": 0.01, "r2": 0.2}
"""Seconds per token. Even idle, r2 would break the objective."""
ANY = AdmissionSpec(max_breach_probability=1.0)
TPOT = Slo(tpot=(Objective(0.99, 0.1),))


def answered(story: Story, name: str) -> Story:
    """The request gets 40 tokens at the speed of its replica."""
    (attempt,) = story.controller.state.attempts.values()
    story.sent(name).after(0.05).first_token(name).after(39 * STEP_S[attempt.replica.spec.name])
    return story.finishes(name, output_tokens=40, tokens_seen=40).whatever()


def learned() -> Story:
    """Costs are learned from both replicas. The tier `free` has no objective, so it is admitted meanwhile."""
    story = play(policy(pool("p", "r1", "r2", slots=1), tier("std", slo=TPOT, admission=ANY), tier("free", 1)), 0.5)
    for number in range(200):
        away = "r1" if number % 5 == 0 else "r2"
        story.drains(away).arrives(f"lesson {number}", tier="free").whatever()
        answered(story, f"lesson {number}").drains(away, on=False).whatever()
    return story


def observed(story: Story) -> list[float | None]:
    """Step limits of the replicas, after a scrape of each."""
    for name in STEP_S:
        story.observes(name, Sample(waiting=0, running=0))
    return [story.replica(name).step_limit_s for name in STEP_S]


def queued_limit_s(story: Story) -> float:
    found = story.controller.state.fleet.pool("p")
    assert found is not None
    return story.controller.state.forecaster.costs(found).queued_limit_s


def test_step_limit_for_queued_requests_is_the_same_whichever_replica_took_the_latest() -> None:
    story = learned()
    story.arrives("x1").arrives("x2").whatever()
    limits = observed(story)
    assert limits[0] is not None
    assert limits[1] is None, "its steps are not limited: it would break the objective even if it were idle"
    held = {story.controller.state.attempts[story.attempts[name][0]].replica.spec.name: name for name in ("x1", "x2")}
    story.arrives("q1").arrives("q2").expect()
    seen = []
    for replica in ("r1", "r2"):
        story.after(0.1).finishes(held[replica])
        assert story.replica(replica).in_flight == 1
        story.whatever()
        seen.append(queued_limit_s(story))
    assert seen == [limits[0], limits[0]]
