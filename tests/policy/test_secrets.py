"""Secrets from the environment, or in the place of a hash, are never shown."""

from __future__ import annotations

import pytest

from .sample import HASH_A, changed, errors_of

CANARY = "canary-5ecret"
PLACES = {
    "engine": ("engine: vllm", "engine: ${X}"),
    "replica": ("http://b:1]", "'${X}']"),
    "replica with a password": ("http://b:1]", "'http://u:${X}@b:1']"),
    "replica path": ("http://b:1]", "'http://b:1/?${X}']"),
    "router": ("round-robin", "${X}"),
    "slots": ("slots: 8", "slots: ${X}"),
    "pool of a model": ("[short, long]", "[short, '${X}']"),
    "pool twice": ("[short, long]", "['${X}', '${X}']"),
    "tier of a key": ("tier: paid}", "tier: '${X}'}"),
    "default tier": ("  tier: free", "  tier: ${X}"),
    "percentile": ("p99: 2s", "p99: '${X}'"),
    "number": ("limit: 20", "limit: '${X}'"),
    "hash": (HASH_A, "'${X}'"),
    "version": ("tailgate/v1", "${X}"),
    "model section": ("    pools: [short, long]\n    aliases: [gpt]", "    ${X}"),
    "rate": ("slots: 8", "queue: {bytes: '${X}', limit: '${X}'}"),
    "secret with spaces": ("slots: 8", "api_key: '${X} '"),
}


@pytest.mark.parametrize(("old", "new"), PLACES.values(), ids=PLACES)
def test_policy_error_does_not_show_a_value_from_the_environment(old: str, new: str) -> None:
    errors = errors_of(changed(old, new), {"X": CANARY})
    assert errors
    assert not any(CANARY in error for error in errors)


def test_policy_error_names_the_environment_variable_of_a_bad_value() -> None:
    assert errors_of(changed("slots: 8", "slots: ${X}"), {"X": CANARY}) == [
        "p.yaml:13: pools.short.slots: ${X} is not a number of slots: "
        "write a whole number from 1, auto, or {max: 8, strict: true}"
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (HASH_A, CANARY),
        (HASH_A, f"[{CANARY}]"),
        ("http://b:1]", f"'http://{CANARY}:{CANARY}@b:1']"),
        ("slots: 8", f"api_key: [{CANARY}]"),
        ("slots: 8", f"api_key: {CANARY} x"),
        ("keys:\n", f"keys:\n  - {CANARY}\n"),
        ("{sha256: aaaa", f"{{key: {CANARY}, sha256: aaaa"),
    ],
)
def test_policy_error_does_not_show_a_secret_in_the_wrong_place(old: str, new: str) -> None:
    errors = errors_of(changed(old, new))
    assert errors
    assert not any(CANARY in error for error in errors)
