"""The reports of an emulated engine, and its time."""

from __future__ import annotations

import math
import time

import pytest

from gateway.sim.engine.profiles import PROFILES
from loadtests.emulator import Emulator
from loadtests.emulator.engine import Engine, Sequence

from .wire import BODIES, chat, generation, http


async def scraped(connect, url: str) -> dict[str, float]:
    answer = await (await connect(url, http("/metrics"))).answer()
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_emulator_metrics_have_the_names_of_vllm_and_count_requests(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, chat(max_tokens=8), chat(max_tokens=8, stream=True), chat(max_tokens=8, n=2))
    for _ in range(3):
        await wire.answer()
    embedding = await connect(emulator.url, http("/v1/embeddings", b'{"input":[[1,2,3],[4]]}'))
    await embedding.answer()
    values = await scraped(connect, emulator.url)
    mine = '{engine="0",model_name="emulated"}'
    assert values["vllm:prompt_tokens_total" + mine] == 4 * 13 + 4
    assert values["vllm:generation_tokens_total" + mine] == 4 * 8
    assert values["vllm:num_requests_running" + mine] == values["vllm:num_requests_waiting" + mine] == 0
    assert values["vllm:kv_cache_usage_perc" + mine] == values["vllm:num_preemptions_total" + mine] == 0
    assert values['vllm:request_success_total{engine="0",finished_reason="length",model_name="emulated"}'] == 4
    assert values["vllm:time_to_first_token_seconds_count" + mine] == 4
    assert values['vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="emulated"}'] == 6
    config = next(name for name in values if name.startswith("vllm:cache_config_info"))
    assert 'block_size="16"' in config
    assert 'num_gpu_blocks="512"' in config


async def test_emulator_gauges_show_running_and_waiting_requests(connect) -> None:
    async with Emulator(profile="default", time_scale=1.0) as emulator:
        replica = emulator.replicas[0]
        await connect(emulator.url, chat(max_tokens=1000, n=70))
        await replica.until(lambda r: r.running == 64)
        wire = await connect(emulator.url, chat(max_tokens=1, priority=1))
        await replica.until(lambda r: r.waiting == 7)
        values = await scraped(connect, emulator.url)
        mine = '{engine="0",model_name="emulated"}'
        assert values["vllm:num_requests_running" + mine] == 64
        assert values["vllm:num_requests_waiting" + mine] == 7
        load = await connect(emulator.url, http("/load"))
        assert (await load.answer()).json() == {"server_load": 2}
        await wire.close()


async def test_emulator_with_a_full_cache_preempts_and_every_request_finishes(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, generation("/v1/completions", max_tokens=2000, n=8))
    answer = await wire.answer()
    assert answer.json()["usage"]["completion_tokens"] == 16_000
    assert (await scraped(connect, emulator.url))['vllm:num_preemptions_total{engine="0",model_name="emulated"}'] > 0


async def test_emulator_lists_models_with_their_context_length(emulator: Emulator, connect) -> None:
    answer = await (await connect(emulator.url, http("/v1/models"))).answer()
    (model,) = answer.json()["data"]
    assert (model["id"], model["max_model_len"], model["owned_by"]) == ("emulated", 4096, "vllm")


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_emulator_health_answer_has_an_empty_body(emulator: Emulator, connect, path: str) -> None:
    answer = await (await connect(emulator.url, http(path))).answer()
    assert (answer.status, answer.body) == (200, b"")


async def test_emulator_reports_its_load_on_whole_answers_if_requested(emulator: Emulator, connect) -> None:
    body = b'{"prompt":"Hello"}'
    asked = http("/v1/completions", body, "endpoint-load-metrics-format: JSON")
    wire = await connect(emulator.url, asked, http("/v1/completions", body))
    assert '"num_requests_waiting": 0.0' in (await wire.answer()).headers["endpoint-load-metrics"]
    assert "endpoint-load-metrics" not in (await wire.answer()).headers


async def test_emulator_state_shows_its_counters(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, chat(max_tokens=8), chat(model="other"), http("/emulator/state"))
    for _ in range(2):
        await wire.answer()
    state = (await wire.answer()).json()
    assert state["received_total"] == 2
    assert state["answered"] == {"/v1/chat/completions 200": 1, "/v1/chat/completions 404": 1}
    assert state["generation_tokens_total"] == 8
    assert (state["profile"], state["time_scale"], state["fault"]) == ("test", None, None)


@pytest.mark.parametrize("stream", [True, False])
async def test_emulated_answer_takes_the_time_of_the_engine_model(connect, stream: bool) -> None:
    async with Emulator(profile="default", time_scale=20.0) as emulator:
        wire = await connect(emulator.url, chat(stream=stream, max_tokens=100))
        began = time.monotonic()
        await wire.answer()
        took = time.monotonic() - began
    assert took * 20 >= 99 * PROFILES["default"].step_base_s  # a slow machine may take longer


async def test_emulated_time_stands_still_while_an_engine_is_paused() -> None:
    engine = Engine(PROFILES["default"], time_scale=1000.0)
    ended: list[int] = []
    sequence = Sequence(1, 3, None, lambda _: ended.append(1))
    engine.submit([sequence])
    engine.pause(True)
    at = engine.model.next_at()
    for _ in range(3):
        engine.submit([sequence])
        engine.pause(True)
    assert engine.model.step_at() <= at
    assert not ended
    engine.close()
    assert engine.model.running == engine.model.waiting == 0


async def test_time_scale_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="time_scale"):
        Engine(PROFILES["test"], time_scale=0.0)
    assert Engine(PROFILES["test"], time_scale=math.inf).model.running == 0


async def test_emulator_counts_every_generation_once_per_replica(emulator: Emulator, connect) -> None:
    for path in BODIES:
        wire = await connect(emulator.urls[1], generation(path, stream=True))
        await wire.answer()
    assert [replica.received_total for replica in emulator.replicas] == [0, len(BODIES)]
    assert [received.path for received in emulator.replicas[1].requests] == list(BODIES)
