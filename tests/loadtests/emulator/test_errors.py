"""vLLM's refusals: status, type and int code, as recorded from vLLM 0.32."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtests.emulator import Emulator

from .wire import BODIES, chat, generation, http

CHAT = "/v1/chat/completions"


async def error(connect, emulator: Emulator, request: bytes) -> dict[str, Any]:
    wire = await connect(emulator.url, request)
    answer = await wire.answer()
    assert emulator.replicas[0].running == 0
    return {"status": answer.status} | answer.json()["error"]


async def test_emulator_answers_404_to_an_unknown_model(emulator: Emulator, connect) -> None:
    assert await error(connect, emulator, chat(model="other")) == {
        "status": 404,
        "message": "The model `other` does not exist. Valid aliases: emulated.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


async def test_an_emulated_request_without_a_model_gets_the_emulated_one(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, http(CHAT, json.dumps(BODIES[CHAT]).encode()))
    assert (await wire.answer()).json()["model"] == "emulated"


async def test_emulator_errors_have_the_anthropic_format_on_messages(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, generation("/v1/messages", model="other"))
    answer = await wire.answer()
    assert (answer.status, answer.json()["type"]) == (404, "error")
    assert answer.json()["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize("path", list(BODIES))
async def test_emulator_answers_400_to_a_prompt_over_the_context(emulator: Emulator, connect, path: str) -> None:
    long = "word" * 4096
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": long}]} if "messages" in BODIES[path] else {}
    field = "prompt" if path == "/v1/completions" else "input"
    wire = await connect(emulator.url, generation(path, **(prompt or {field: long})))
    answer = await wire.answer()
    assert answer.status == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("This model's maximum context length is 4096 tokens. However, your prompt contains ")
    assert answer.json()["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"max_tokens": 4097}, "max_tokens", "max_tokens=4097 cannot be greater than max_model_len=4096"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens must be at least 1, got -1"),
        ({"n": 0}, None, "n must be at least 1, got 0."),
        ({"max_tokens": "many"}, "body.max_tokens", "'type': 'int_parsing'"),
        ({"max_tokens": 1.5}, "body.max_tokens", "'type': 'int_from_float'"),
        ({"max_tokens": [1]}, "body.max_tokens", "'type': 'int_type'"),
        ({"messages": "Hello"}, "body.messages", "'type': 'list_type'"),
        ({"messages": None}, "body.messages", "Field required"),
    ],
)
async def test_emulator_answers_400_to_a_bad_field(
    emulator: Emulator, connect, fields: dict[str, object], param: str, said: str
) -> None:
    got = await error(connect, emulator, generation(CHAT, **fields))
    assert (got["status"], got["code"], got["param"]) == (400, 400, param)
    assert said in got["message"]


@pytest.mark.parametrize("body", [b'{"model":', b"", b"[1]", b'\xff{"model"'])
async def test_emulator_answers_400_to_a_body_that_is_no_json_object(emulator: Emulator, connect, body: bytes) -> None:
    got = await error(connect, emulator, http(CHAT, body))
    assert (got["status"], got["type"], got["code"]) == (400, "Bad Request", 400)


async def test_emulator_answers_400_to_an_empty_prompt(emulator: Emulator, connect) -> None:
    assert (await error(connect, emulator, generation("/v1/completions", prompt="")))["param"] == "prompt"
    assert (await error(connect, emulator, generation("/v1/completions", prompt=[{}])))["param"] == "body.prompt"
    assert (await error(connect, emulator, http("/v1/embeddings", b'{"input":""}')))["status"] == 400


async def test_an_emulated_messages_request_without_max_tokens_is_refused(emulator: Emulator, connect) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
    got = await error(connect, emulator, http("/v1/messages", body))
    assert got["param"] == "body.max_tokens"


async def test_emulator_answers_503_if_its_queue_is_full(connect) -> None:
    async with Emulator(profile="default", time_scale=1.0, max_queued=0) as emulator:
        replica = emulator.replicas[0]
        got = await error(connect, emulator, chat())
        assert (got["status"], got["type"], got["code"]) == (503, "Service Unavailable", 503)
        assert replica.rejected_total == 1
