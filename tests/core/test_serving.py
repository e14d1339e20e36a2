"""The arm of a split model that a session gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.policy import Model, Policy, Tier
from gateway.core.serving import arm_of

from .made import STEADY, policy, pool, tier

KEYS = [f"session {number}" for number in range(4000)]


def rules(split: dict[str, int], name: str = "default") -> Policy:
    arms = [Model(arm, (f"of-{arm}",)) for arm in split]
    pools = [pool(f"of-{arm}", f"r-{arm}") for arm in split]
    shared = Model(name, tuple(f"of-{arm}" for arm in split), split=tuple(split.items()))
    return policy(*pools, tier("std"), tier("bound", pools=("of-a",)), models=[*arms, shared])


def arms(split: dict[str, int], name: str = "default", of: str = "std", keys: Sequence[str] = KEYS) -> dict[str, str]:
    """The arm of each key."""
    made = rules(split, name)
    chosen: Tier = made.tiers[of]
    return {key: arm_of(made, made.models[name], chosen, key).name for key in keys}


@pytest.mark.parametrize("split", [{"a": 95, "b": 5}, {"a": 1, "b": 1}, {"a": 50, "b": 30, "c": 20}])
def test_sessions_are_split_over_arms_by_weight(split: dict[str, int]) -> None:
    found, whole = Counter(arms(split).values()), sum(split.values())
    for arm, weight in split.items():
        assert found[arm] / len(KEYS) == pytest.approx(weight / whole, abs=0.025)


def test_split_arm_of_a_session_is_the_same_in_every_process_and_version() -> None:
    """Other gateways choose the same arms: a change here would move everybody's sessions."""
    found = arms({"a": 2, "b": 1, "c": 1})
    assert [found[f"session {number}"] for number in range(12)] == list("bbacababaaaa")


@STEADY
@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 100), min_size=2),
    st.sampled_from("abcd"),
    st.integers(0, 200),
)
def test_changed_weight_moves_sessions_only_to_or_from_that_arm(
    split: dict[str, int], changed: str, weight: int
) -> None:
    after = {**split, changed: weight}
    if not any(after.values()):
        return
    old, new = arms(split, keys=KEYS[:300]), arms(after, keys=KEYS[:300])
    moved = {(old[key], new[key]) for key in old if old[key] != new[key]}
    rises = weight * sum(split.values()) > split.get(changed, 0) * sum(after.values())
    assert all((to if rises else source) == changed for source, to in moved)


def test_scaled_weights_move_no_session() -> None:
    assert arms({"a": 95, "b": 5}) == arms({"a": 950, "b": 50})


def test_split_arm_of_weight_0_gets_no_session() -> None:
    assert set(arms({"a": 1, "b": 0}).values()) == {"a"}


def test_two_splits_of_the_same_arms_are_independent() -> None:
    one, other = arms({"a": 1, "b": 1}, "one"), arms({"a": 1, "b": 1}, "other")
    assert sum(one[key] == other[key] for key in KEYS) / len(KEYS) == pytest.approx(0.5, abs=0.03)


def test_arms_that_the_tier_may_not_use_are_left_out() -> None:
    assert set(arms({"a": 1, "b": 99}, of="bound").values()) == {"a"}
