"""Texts of refusals: each number agrees with the decision, whatever the forecast."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.commands import Refuse
from gateway.core.slo import Objective, Slo
from tests.interpreted import interpreted

from .made import a_request, pool, tier
from .oracle import ENFORCE, Oracle, story_of
from .playbook import Story

pytestmark = interpreted  # a method of the forecaster is replaced


def story(ttft_bound_s: float, breach: float, ttft_s: float) -> tuple[Story, Oracle]:
    """A tier with one TTFT objective, which refuses above one half, and its forecast."""
    slo = Slo(ttft=(Objective(0.99, ttft_bound_s),))
    made, oracle = story_of(pool("p", "r1"), tier("std", slo=slo, admission=ENFORCE), breach={"p": breach})
    oracle.ttft_s = ttft_s
    return made, oracle


def refusal(made: Story) -> str:
    """The error text of a request that arrives now."""
    first, *_ = made.controller.arrive(a_request(1, made.controller.policy, 0.0), 0.0)
    assert isinstance(first, Refuse)
    return first.detail


@given(
    breach=st.floats(0.5, 1.0, exclude_min=True),
    ttft_s=st.floats(0.001, 100.0),
    bound_s=st.floats(0.001, 100.0),
)
def test_refusal_says_more_than_a_bound_only_of_what_is_more(breach: float, ttft_s: float, bound_s: float) -> None:
    assume(breach > 0.5)
    text = refusal(story(bound_s, breach, ttft_s)[0])
    times = re.search(r"time to first token (\S+) s, more than (\S+) s;", text)
    assert (times is not None) == (ttft_s > bound_s)
    if times is not None:
        assert float(times[1]) > float(times[2])
    else:
        assert "most likely the time to first token" in text
    chance = re.search(r"a probability of (more than )?(\S+), above (\S+)\.$", text)
    assert chance is not None
    assert 0.5 <= float(chance[3]) <= float(chance[2]) < 1.0
    assert chance[1] or float(chance[2]) > float(chance[3])


def test_refusal_below_the_bound_names_the_objective_without_a_number_that_is_kept() -> None:
    text = refusal(story(0.3, 0.62, 0.29)[0])
    assert text == (
        "The replicas are busy. Predicted: an objective, most likely the time to first token, is missed with a "
        "probability of 0.62, above 0.50."
    )


@pytest.mark.parametrize("breach", [0.999, 1.0])
def test_refusal_never_claims_certainty(breach: float) -> None:
    assert refusal(story(0.3, breach, 0.5)[0]).endswith(
        "time to first token 0.5 s, more than 0.3 s; an objective is missed with a probability of more than 0.99, "
        "above 0.50."
    )
