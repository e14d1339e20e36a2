"""The emulator beside recorded answers of vLLM 0.32 to the same requests (CPU build, a tiny random Llama, 8192
context).

The recording holds real answers, some of an engine with `prompt_tokens_details`. Errors must be identical. Other
answers must have the same fields, types and order, event by event; runs of similar events count as one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.sim.engine.profiles import PROFILES
from loadtests.emulator import Emulator

from .wire import http

RECORDED = json.loads((Path(__file__).parent / "vllm-0.32.json").read_text())
PROFILE = replace(PROFILES["test"], max_model_len=8192)


def shape(value: object) -> object:
    """The types and keys of a JSON value."""
    if isinstance(value, dict) and value and all(isinstance(inner, float) for inner in value.values()):
        return "log-probability by token"
    if isinstance(value, dict):
        return {key: "bytes" if key == "bytes" else shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def event_shape(event: str) -> tuple[str, str]:
    """The lines before the data, and the shape of the data with its order of keys."""
    head, _, data = event.rpartition("data: ")
    return head, json.dumps(shape(json.loads(data))) if data.startswith("{") else data


def collapsed(shapes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [each for index, each in enumerate(shapes) if not index or shapes[index - 1] != each]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: f"{r['method']} {r['path']} {r['status']}")
async def test_emulated_answer_has_the_form_of_the_recorded_one(connect, recorded: dict[str, Any]) -> None:
    body = recorded["body"].encode() if recorded["body"] else None
    full = 0 if recorded["status"] == 503 else None
    details = recorded.get("prompt_tokens_details", False)
    async with Emulator(profile=PROFILE, model="m", max_queued=full, prompt_tokens_details=details) as emulator:
        wire = await connect(emulator.url, http(recorded["path"], body, method=recorded["method"]))
        answer = await wire.answer()
    assert (answer.status, answer.headers.get("content-type")) == (recorded["status"], recorded["content_type"])
    if answer.chunks is not None:
        events = [event_shape(chunk.decode().removesuffix("\n\n")) for chunk in answer.chunks]
        assert collapsed(events) == collapsed([event_shape(event) for event in recorded["answer"]])
    elif answer.status >= 400 or not answer.body:
        assert answer.body.decode() == recorded["answer"]
    else:
        assert json.dumps(shape(answer.json())) == json.dumps(shape(json.loads(recorded["answer"])))
