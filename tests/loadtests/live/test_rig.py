"""Processes, end to end: a few requests through the gateway, and through a baseline in its place."""

from __future__ import annotations

import orjson
import pytest

from loadtests.emulator.text import count_chat
from loadtests.experiments.lab import SETUP
from loadtests.live.clients import request
from loadtests.live.pace import Shot
from loadtests.live.rig import Load, run
from loadtests.live.scaled import key_of

KEYS = [key_of("tier-0", "a"), key_of("tier-1", "b"), key_of("tier-2", "c")]


@pytest.mark.parametrize("tokens", [8, 9, 11, 500, 4142])
def test_prompts_have_the_tokens_that_are_wanted(tokens: int) -> None:
    _, _, body = request(Shot(0.0, "tier-0", "key", tokens, 3, 1.0), "host").partition(b"\r\n\r\n")
    asked = orjson.loads(body)
    assert count_chat(asked["messages"]) == tokens
    assert asked["min_tokens"] == 3
    assert "max_tokens" not in asked


def test_a_prompt_that_no_chat_can_have() -> None:
    with pytest.raises(ValueError, match="more than 7"):
        request(Shot(0.0, "tier-0", "key", 7, 3, 1.0), "host")


@pytest.mark.parametrize("baseline", [None, "static-cap:slots=8,wait=0.5"])
def test_every_answer_has_its_length(baseline: str | None) -> None:
    shots = [Shot(0.02 * n, key.tier, key.text, 30 + n, 1 + n, 1000.0) for n, key in enumerate(KEYS * 3)]
    load = Load((SETUP / "policy.yaml").read_text(), shots, KEYS, 1.0, 0.1, 0.4, 30.0)
    told: list[str] = []
    found = run("it", baseline, load, told.append)
    assert [(shot.tokens, shot.status, shot.reason) for shot in found.shots] == [(1 + n, 200, "") for n in range(9)]
    assert len(found.counted) == 4
    assert set(found.processes) == {"replicas", "gateway", "clients"}
    assert all(sum(process.waits) > 0 for process in found.processes.values())
    assert told
