"""Notes on policies that are valid but unusual."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.policy import PolicyErrors, builtin, load_text
from gateway.policy.load import load_noted
from gateway.policy.notes import notes

from .sample import SAMPLE, changed


def said(text: str) -> list[str]:
    """The notes, except that the paid tier of the sample has no cap."""
    return [note for note in notes(load_text(text, "p.yaml")) if not note.startswith("tiers.paid.max_tokens:")]


def test_tier_without_an_output_cap_gets_a_note() -> None:
    assert notes(load_text(SAMPLE, "p.yaml")) == (
        "tiers.paid.max_tokens: a request that names no length gets what its engine gives, up to the whole context; "
        "write a limit to bound it",
    )


def test_policy_whose_fields_all_have_an_effect_gets_no_note() -> None:
    assert said(SAMPLE) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("    pools: [short, long]", "    pools: [long]", "pools.short: no model lists this pool"),
        (", tier: paid}", "}", "tiers.paid: no key has this tier"),
        ("defaults:", "listen: {names: [a]}\ndefaults:", "listen.names: has no effect: with keys"),
        (
            "  mistral:\n",
            "  chat: {split: {llama: 1}}\n  mistral:\n",
            "models.chat.split: without x-session-id or prompt_cache_key or metadata.user_id a tenant stays with one",
        ),
        ("limit: 20}", "limit: 20, degrade: true}", "tiers.free.max_tokens.degrade: has no effect"),
    ],
)
def test_a_policy_field_without_effect_gets_a_note(old: str, new: str, expected: str) -> None:
    (note,) = said(changed(old, new))
    assert note.startswith(expected)


def test_a_fallback_to_the_only_model_gets_a_note() -> None:
    text = changed("  mistral:\n    pools: [long]\n", "").replace("  free:\n", "  free:\n    fallback: llama\n")
    assert said(text) == ["tiers.free.fallback: has no effect: there is no other model"]


def test_the_note_on_a_split_names_the_keys_of_sessions_of_the_policy() -> None:
    text = changed("  mistral:\n", "  chat: {split: {llama: 1}}\n  mistral:\n")
    affinity = "    affinity: {header: X-Chat, keys: [header, user]}"
    text = text.replace("    router: round-robin", f"    router: round-robin\n{affinity}")
    (note,) = said(text)
    assert note.startswith("models.chat.split: without x-chat or user or x-session-id or prompt_cache_key")


def test_an_arm_of_a_split_with_the_weight_0_gets_a_note() -> None:
    text = changed("  mistral:\n", "  chat: {split: {llama: 1, mistral: 0}}\n  mistral:\n")
    assert "models.chat.split.mistral: has the weight 0, so nothing is sent to it" in said(text)


def test_policy_without_keys_gets_a_note_on_where_it_can_be_served() -> None:
    assert "keys: there are none, so this policy is served on loopback only" in notes(builtin(["http://a:1"]))


def test_different_weights_at_one_priority_get_a_note() -> None:
    (note,) = said(changed("  free:\n    slo:", "  free:\n    weight: 4\n    slo:"))
    assert note.startswith("tiers: free, paid have the priority 0: the latest start decides, but")
    assert "by weight, free before paid" in note


def test_old_name_of_a_field_works_and_gets_a_note_with_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    old = changed("    max_tokens:", "    keep_alive: 15s\n    max_tokens:")
    path.write_text(old)
    policy, found = load_noted(path)
    assert {tier.keep_alive_s for tier in policy.tiers.values()} == {0.0, 15.0}
    assert [note for note in found if "keep_alive" in note] == [
        "tiers.free.keep_alive: is called sse_comments now: rename it"
    ]
    path.write_text(old.replace("keep_alive", "sse_comments"))
    assert replace(load_noted(path)[0], digest="") == replace(policy, digest="")
    path.write_text(old.replace("    keep_alive: 15s\n", "    keep_alive: 15s\n    sse_comments: 15s\n"))
    with pytest.raises(PolicyErrors) as raised:
        load_noted(path)
    (error,) = raised.value.errors
    assert (error.path, error.line) == ("tiers.free.keep_alive", 21)
    assert error.message == "is the old name of sse_comments: remove it"


def test_old_name_with_a_variable_that_is_not_set_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(changed("    max_tokens:", "    keep_alive: ${NOT_SET_ANYWHERE}\n    max_tokens:"))
    with pytest.raises(PolicyErrors) as raised:
        load_noted(path)
    assert len(raised.value.errors) == 1
