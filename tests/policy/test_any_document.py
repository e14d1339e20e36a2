"""Any file gives a policy or a list of errors."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.policy import Policy
from gateway.policy import PolicyError, PolicyErrors, load_text

from .sample import SAMPLE

HOME = "c4n4ry-home"
FIELDS = """
apiVersion sha256 kind models pools tiers keys defaults listen aliases replicas url name slots queue limit
bytes timeouts ttft p50 p99 slo e2e up_to_tokens reserve spill_from router health api_key max_tokens default tenant tier
"""
VALUES = "tailgate/v1 Policy llama short long free * auto http://a:1 1s 25% 60/min 64MiB ${HOME} ${NOPE} ${ ~"
WORDS = st.sampled_from([*FIELDS.split(), *VALUES.split(" ")])
SCALARS = st.one_of(WORDS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)
SECTIONS = st.sampled_from(["models", "pools", "tiers", "keys", "defaults", "listen", "kind"])


def tried(text: str) -> None:
    for error in _errors(text):
        assert error.line >= 1
        assert "\n" not in str(error)
        assert HOME not in str(error)


def _errors(text: str) -> tuple[PolicyError, ...]:
    try:
        assert isinstance(load_text(text, "p.yaml", {"HOME": HOME}), Policy)
    except PolicyErrors as errors:
        return errors.errors
    return ()


@given(st.text(max_size=200))
def test_any_text_loads_or_is_refused_with_errors(text: str) -> None:
    tried(text)


@given(TREES)
def test_any_tree_loads_or_is_refused_with_errors(tree: object) -> None:
    tried(json.dumps(tree))


@given(st.dictionaries(SECTIONS, TREES))
def test_any_tree_as_a_section_loads_or_is_refused_with_errors(sections: dict[str, object]) -> None:
    tried(f"apiVersion: tailgate/v1\n{json.dumps(sections)[1:-1]}\n")
    tried(json.dumps({"apiVersion": "tailgate/v1", **sections}))


@given(st.data())
def test_good_policy_with_any_line_changed_loads_or_is_refused_with_errors(data: st.DataObject) -> None:
    lines = SAMPLE.splitlines()
    index = data.draw(st.integers(0, len(lines) - 1))
    key, colon, _ = lines[index].partition(":")
    value = data.draw(TREES)
    lines[index] = f"{key}{colon} {json.dumps(value)}"
    tried("\n".join(lines))


@given(st.data())
@settings(max_examples=200)
def test_good_policy_with_any_piece_cut_out_loads_or_is_refused_with_errors(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(SAMPLE)))
    end = data.draw(st.integers(start, min(len(SAMPLE), start + 40)))
    tried(SAMPLE[:start] + data.draw(st.text(max_size=3)) + SAMPLE[end:])
