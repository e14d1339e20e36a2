"""Labels for the forecast from ends of requests: missed, in time, or none."""

from __future__ import annotations

import pytest

from gateway.core.results import AttemptOutcome, Outcome, Reason
from tests.interpreted import interpreted

from .made import policy, pool, tier
from .oracle import ENFORCE, SLO, STRICT, degrading, late, story_of

pytestmark = interpreted


@pytest.mark.parametrize(("first_token_s", "missed"), [(0.9, False), (1.1, True)])
def test_served_request_is_labelled_by_its_ttft(first_token_s: float, missed: bool) -> None:
    story, oracle = story_of(pool("p", "r1"), STRICT)
    story.arrives("a").sent("a").at(first_token_s).first_token("a").finishes("a").whatever()
    assert set(oracle.labels) == {("judged", 1, missed)}


def test_admitted_request_that_is_never_sent_is_labelled_a_miss() -> None:
    """Otherwise the forecast would learn only from served requests, and ever more requests would wait in vain."""
    story, oracle = story_of(pool("p", "r1"), STRICT)
    late(story)
    oracle.breach["p"] = 0.6
    story.finishes("running").whatever()
    assert oracle.labels == [("judged", 1, False), ("judged", 2, True)]


def test_request_that_waited_until_its_bound_is_labelled_a_miss() -> None:
    story, oracle = story_of(pool("p", "r1"), STRICT)
    story.arrives("running").arrives("a").at(1.0).whatever()
    assert oracle.labels == [("judged", 2, True)]


def test_request_displaced_by_a_more_urgent_tier_is_labelled_a_miss() -> None:
    lower = tier("low", slo=SLO, admission=ENFORCE, priority=1)
    story, oracle = story_of(pool("p", "r1", queue_limit=1), STRICT, lower)
    story.arrives("running").arrives("low", tier="low").arrives("high").whatever()
    assert story.records["low"].why is Reason.EVICTED
    assert oracle.labels == [("judged", 2, True)]


def test_request_refused_on_arrival_gives_no_label() -> None:
    story, oracle = story_of(pool("p", "r1"), STRICT, breach={"p": 0.6})
    story.arrives("a").whatever()
    assert oracle.labels[0] == ("dropped", 1)


def test_client_that_leaves_while_waiting_gives_no_label() -> None:
    story, oracle = story_of(pool("p", "r1"), STRICT)
    story.arrives("running").arrives("a").leaves("a").whatever()
    assert oracle.labels == [("dropped", 2)]


def test_answer_broken_by_a_replica_gives_no_label() -> None:
    story, oracle = story_of(pool("p", "r1"), STRICT)
    story.arrives("a").sent("a").first_token("a").finishes("a", AttemptOutcome.TRUNCATED).whatever()
    assert oracle.labels[-1] == ("dropped", 1)


def test_reload_that_removes_the_last_replica_labels_no_miss() -> None:
    story, oracle = story_of(pool("p", "r1"), pool("q", "r2"), STRICT, breach={"p": 0.0, "q": 0.0})
    story.arrives("running").arrives("a").whatever()
    story.fails("r2").configured(policy(pool("q", "r2"), STRICT)).whatever()
    assert story.records["a"].why is Reason.NO_REPLICAS
    assert oracle.labels == [("dropped", 2)]


def test_answer_capped_by_the_gateway_is_in_time_but_not_good() -> None:
    """A short answer was forecast to be in time: a label of "missed" would make ever more requests doubtful."""
    story, oracle = degrading()
    story.arrives("a", max_tokens=500).sent("a").first_token("a").finishes("a", output_tokens=76).whatever()
    record = story.records["a"]
    assert (record.outcome, record.degraded, record.good) == (Outcome.OK, True, False)
    assert oracle.labels == [("judged", 1, False)]


def test_late_answer_capped_by_the_gateway_is_a_miss() -> None:
    story, oracle = degrading()
    story.arrives("a", max_tokens=500).sent("a").first_token("a").at(10.1)
    story.finishes("a", output_tokens=76).whatever()
    assert oracle.labels == [("judged", 1, True)]
