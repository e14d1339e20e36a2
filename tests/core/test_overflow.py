"""In shadow, requests that no replica would serve in time go to one, so that the others are in time again."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.fleet.pool import Replica
from gateway.core.fleet.step_budget import StepPrices
from gateway.core.policy import AdmissionMode, AdmissionSpec, Objective, Slo
from gateway.core.snapshot import CapacityBound
from tests.interpreted import interpreted

from .made import policy, pool, tier
from .oracle import Oracle, story_of
from .playbook import Story, dispatch

pytestmark = interpreted  # forecasts are replaced
SLO = Slo(ttft=(Objective(0.99, 1.0),))
TPOT = Slo(tpot=(Objective(0.99, 0.1),))
PRICES = StepPrices(base_s=0.01, sequence_s=1e-3, context_s=0.0, prompt_s=0.0)
SHADOW = tier("std", slo=SLO, admission=AdmissionSpec(AdmissionMode.SHADOW, exploration=0.01))


def told(*parts: Any, idle: float = 0.0, known: bool = True, **breach: float) -> tuple[Story, Oracle]:
    """Costs are `known`, and an idle replica would miss with probability `idle`."""
    story, oracle = story_of(*parts, breach={"p": 0.0, **breach})
    forecaster: Any = story.controller.forecaster
    forecaster.has_costs = lambda name: known
    forecaster.idle_breach = lambda live, at, now: idle
    forecaster.is_late = lambda live, forecast, bound_s: 0.0
    return story, oracle


def replicas(story: Story) -> list[Replica]:
    at = story.controller.state.fleet.pool("p")
    assert at is not None
    return list(at.replicas.values())


def limit(story: Story) -> float:
    """The longest mean step that keeps the objectives in use."""
    return story.controller.state.admission.promises.step_limit_s(replicas(story)[0].pool, PRICES, story.now)


def sent(story: Story, count: int, **how: Any) -> list[int]:
    """How many of so many newcomers each replica gets. `how` is as for `made.a_request`."""
    before = {name: story.replica(name).in_flight for name in ("r1", "r2")}
    for number in range(count):
        story.arrives(f"n{len(story.ids)}-{number}", **how).whatever()
    return [story.replica(name).in_flight - before[name] for name in ("r1", "r2")]


def two(**facts: Any) -> tuple[Story, Oracle]:
    return told(pool("p", "r1", "r2", slots=None), SHADOW, **facts)


def overloaded() -> tuple[Story, Oracle]:
    """Neither replica is in time, and none was for the latest hundred requests."""
    story, oracle = two(r1=0.95, r2=0.95)
    for number in range(100):
        story.arrives(f"before-{number}").served(f"before-{number}").whatever()
    return story, oracle


def test_no_replica_is_given_up_while_one_is_in_time() -> None:
    story, _ = two(r1=0.95, r2=0.5)
    assert sent(story, 10) == [0, 10]


def test_requests_that_no_replica_serves_in_time_all_go_to_one() -> None:
    story, _ = overloaded()
    assert sorted(sent(story, 20)) == [0, 20]
    assert story.pool("p").queued == 0


def test_slower_of_two_replicas_is_given_up() -> None:
    for slow in ("r1", "r2"):
        story, _ = overloaded()
        story.after(2.0)
        for replica in replicas(story):
            replica.slowness = 2.0 if replica.spec.name == slow else 1.0
        assert sent(story, 10) == [10 * (slow == "r1"), 10 * (slow == "r2")]


def test_other_replicas_take_only_likely_requests_while_one_is_given_up() -> None:
    story, oracle = overloaded()
    given_up = sent(story, 1).index(1)
    other = ("r1", "r2")[1 - given_up]
    oracle.breach[other] = 0.5
    assert sent(story, 5)[given_up] == 5
    oracle.breach[other] = 0.2
    assert sent(story, 5)[given_up] == 0


def test_replica_not_given_up_takes_requests_with_ttft_below_a_quarter_of_the_bound() -> None:
    """P(breach) was learned in the overload, and is too high for a replica that has recovered."""
    for ttft_s, gets in ((0.24, 5), (0.26, 0)):
        story, oracle = overloaded()
        other = 1 - sent(story, 1).index(1)
        oracle.ttft_s, oracle.breach[("r1", "r2")[other]] = ttft_s, 0.5
        assert sent(story, 5)[other] == gets
        assert sent(story, 5, stream=False)[other] == 0, "an unstreamed answer has no TTFT"


def test_replica_not_given_up_takes_only_likely_requests_of_a_tier_without_ttft() -> None:
    """An answer that begins soon need not keep its TPOT objective."""
    shadow = tier("std", slo=TPOT, admission=AdmissionSpec(AdmissionMode.SHADOW, exploration=0.01))
    story, oracle = told(pool("p", "r1", "r2", slots=None), shadow, r1=0.95, r2=0.95)
    for number in range(100):
        story.arrives(f"before-{number}").served(f"before-{number}").whatever()
    other = 1 - sent(story, 1).index(1)
    oracle.breach[("r1", "r2")[other]] = 0.5
    assert sent(story, 5)[other] == 0


@pytest.mark.parametrize(
    ("step_s", "stream", "split"),
    [(0.13, True, [1, 19]), (0.11, True, [10, 10]), (0.13, False, [10, 10])],
    ids=["too long", "little above the bound", "unstreamed"],
)
def test_requests_are_hopeless_where_steps_are_much_longer_than_their_tpot_bound(
    step_s: float, stream: bool, split: list[int]
) -> None:
    """The steps show an overload before P(breach) does, which is low here. An idle replica takes one all the same."""
    shadow = tier("std", slo=TPOT, admission=AdmissionSpec(AdmissionMode.SHADOW, exploration=0.0))
    story, _ = told(pool("p", "r1", "r2", slots=None), shadow, r1=0.1, r2=0.1)
    for number in range(100):
        for replica in replicas(story):
            replica.budget.prices = StepPrices(base_s=step_s, sequence_s=0.0, context_s=0.0, prompt_s=0.0)
            replica.budget.limit_s = 0.1
        story.arrives(f"before-{number}", stream=stream).served(f"before-{number}").whatever()
    assert sorted(sent(story, 20, stream=stream)) == split


def test_a_replica_whose_steps_are_short_takes_what_the_other_would_serve_too_slowly() -> None:
    shadow = tier("std", slo=TPOT, admission=AdmissionSpec(AdmissionMode.SHADOW, exploration=0.0))
    story, _ = told(pool("p", "r1", "r2", slots=None), shadow, r1=0.1, r2=0.1)
    for replica, step_s in zip(replicas(story), (0.13, 0.05), strict=True):
        replica.budget.prices = StepPrices(base_s=step_s, sequence_s=0.0, context_s=0.0, prompt_s=0.0)
    assert sent(story, 10) == [0, 10]


def test_a_replica_that_was_given_up_gets_requests_again_once_it_is_in_time() -> None:
    story, oracle = overloaded()
    given_up = sent(story, 10).index(10)
    oracle.breach["r1"] = oracle.breach["r2"] = 0.1
    for name in [name for name in story.ids if not name.startswith("before")]:
        story.sent(name).first_token(name).finishes(name, output_tokens=5)
    assert sorted(sent(story.whatever(), 10)) == [5, 5]
    oracle.breach[("r2", "r1")[given_up]] = 0.5
    story.after(6.0)
    assert min(sent(story, 10)) >= 4, "after five seconds the other one takes doubtful requests again"


def test_hopeless_requests_are_balanced_while_most_requests_are_in_time() -> None:
    story, oracle = two()
    for number in range(300):
        late = number % 3 != 0
        oracle.breach["r1"] = oracle.breach["r2"] = 0.95 if late else 0.1
        story.arrives(f"mixed-{number}").served(f"mixed-{number}").whatever()
    oracle.breach["r1"] = oracle.breach["r2"] = 0.95
    assert sent(story, 10) == [5, 5]


def test_much_slower_replica_is_given_up_already_at_fewer_late_requests() -> None:
    """With two of three requests late, equally fast replicas are balanced (test above). If a replica is four times
    slower, giving it up costs little.
    """
    story, oracle = two()
    for replica in replicas(story):
        replica.slowness = 4.0 if replica.spec.name == "r2" else 1.0
    for number in range(300):
        oracle.breach["r1"] = oracle.breach["r2"] = 0.95 if number % 2 else 0.1
        story.arrives(f"mixed-{number}").served(f"mixed-{number}").whatever()
    oracle.breach["r1"] = oracle.breach["r2"] = 0.95
    assert sent(story, 10) == [0, 10]


@pytest.mark.parametrize(("limit_s", "share"), [(10.0, 0.8), (1e-6, 1.0)], ids=["with room", "beyond the limit"])
def test_late_answers_narrow_the_step_limit_only_if_their_replica_was_not_overfilled(
    limit_s: float, share: float
) -> None:
    """The replica was sent more than the limit allows. So late answers show nothing about the limit."""
    story, _ = told(pool("p", "r1", slots=None), tier("std", slo=TPOT, admission=AdmissionSpec(AdmissionMode.SHADOW)))
    replica = replicas(story)[0]
    replica.budget.prices, replica.budget.limit_s = PRICES, limit_s
    story.arrives("long").whatever()
    before = limit(story)
    for number in range(20):
        story.arrives(name := f"a{number}").whatever()
        story.first_token(name).after(5.0).finishes(name, output_tokens=11).whatever()
        assert not story.records[name].good
    assert limit(story) <= share * before
    assert (limit(story) == before) is (share == 1.0)


def test_requests_running_at_the_overfill_are_marked_overfilled() -> None:
    story, _ = told(pool("p", "r1", slots=None), SHADOW)
    replica = replicas(story)[0]
    replica.budget.prices, replica.budget.limit_s = PRICES, 10.0
    live = [story.arrives(name).controller.state.requests[story.ids[name]] for name in ("a", "b")]
    assert [each.was_overfilled for each in live] == [False, False]
    replica.budget.overfill(CapacityBound.TPOT, story.now)
    assert [each.was_overfilled for each in live] == [True, True]
    story.after(1.0).arrives("later")
    assert not story.controller.state.requests[story.ids["later"]].was_overfilled


def test_request_is_not_marked_overfilled_without_a_step_limit() -> None:
    """Without TPOT and e2e objectives there never is a limit. Before costs are known, there might be one."""
    story, _ = told(pool("p", "r1", slots=None), SHADOW)
    requests = story.controller.state.requests
    for prices, overfilled in ((None, True), (PRICES, False)):
        replicas(story)[0].budget.prices = prices
        story.after(1.0).arrives(name := f"prices {prices is not None}")
        assert requests[story.ids[name]].was_overfilled is overfilled


@pytest.mark.parametrize("facts", [{"idle": 0.95}, {"known": False}], ids=["not even idle", "costs unknown"])
def test_requests_are_balanced_where_giving_up_would_gain_nothing(facts: dict[str, Any]) -> None:
    story, _ = two(r1=0.95, r2=0.95, **facts)
    assert sent(story, 20) == [10, 10]


def test_a_pool_of_one_replica_sends_everything_there() -> None:
    story, _ = told(pool("p", "r1", slots=None), SHADOW, r1=0.95)
    for number in range(10):
        story.arrives(f"a{number}").expect(dispatch("r1"))


def test_enforced_tier_is_refused_instead_of_giving_up_a_replica() -> None:
    enforced = tier("std", slo=SLO, admission=AdmissionSpec(AdmissionMode.ENFORCE, exploration=0.0))
    story, _ = told(pool("p", "r1", "r2", slots=None), enforced, r1=0.95, r2=0.95)
    story.arrives("probe").whatever()
    assert sent(story, 10) == [0, 0]


def test_no_second_forecast_is_made_while_the_first_choice_is_in_time() -> None:
    story, oracle = two(r1=0.4, r2=0.4)
    sent(story, 10)
    assert len(oracle.asked) == 10


def test_request_at_a_given_up_replica_gives_no_label() -> None:
    story, oracle = overloaded()
    story.arrives("a").whatever()
    story.sent("a").after(5.0).first_token("a").finishes("a", output_tokens=5)
    assert ("dropped", story.ids["a"]) in oracle.labels
    assert ("judged", story.ids["a"]) not in oracle.labels
    record = story.records["a"]
    assert (record.would_shed, record.good) == (True, False)


def test_no_replica_is_given_up_once_a_reload_removes_it() -> None:
    story, oracle = overloaded()
    given_up = sent(story, 1).index(1)
    other = ("r1", "r2")[1 - given_up]
    story.configured(policy(pool("p", "r3", other, slots=None), SHADOW))
    oracle.breach[other], oracle.breach["r3"] = 0.5, 0.95
    for number in range(5):
        story.arrives(f"after-{number}").expect(dispatch(other))


def test_no_replica_is_given_up_in_a_pool_that_was_removed_and_restored() -> None:
    story, oracle = overloaded()
    sent(story, 1)
    story.configured(policy(pool("q", "q1"), SHADOW)).configured(policy(pool("p", "r1", "r2", slots=None), SHADOW))
    oracle.breach["r1"] = oracle.breach["r2"] = 0.5
    assert sent(story, 10) == [5, 5]
