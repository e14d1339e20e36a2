"""Every path without a generation: models, health, load, metrics, and the emulator's own."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING

import orjson

from loadtests.emulator import metrics
from loadtests.emulator.answers import ANSWERS
from loadtests.emulator.faults import FaultKind, parse_fault

if TYPE_CHECKING:
    from loadtests.emulator.exchange import Exchange, Received
    from loadtests.emulator.replica import EmulatedReplica

VERSION = "0.32.0"
PERMISSION = {
    "id": "modelperm-0000000000000000",
    "object": "model_permission",
    "created": 1700000000,
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}
METRICS_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
GETS = ("/v1/models", "/health", "/ping", "/version", "/load", "/metrics", "/emulator/requests", "/emulator/state")


def answer(replica: EmulatedReplica, exchange: Exchange) -> None:
    """Answer a request that asks for no tokens."""
    method, path = exchange.received.method, exchange.received.path
    if path == "/emulator/faults":
        _faults(replica, exchange)
    elif path in GETS and method == "GET":
        _get(replica, exchange, path)
    elif path in GETS or path in ANSWERS:
        allow = b"allow: GET\r\n" if path in GETS else b"allow: POST\r\n"
        exchange.reply(405, b'{"detail":"Method Not Allowed"}', allow)
    else:
        exchange.reply(404, b'{"detail":"Not Found"}')


def _get(replica: EmulatedReplica, exchange: Exchange, path: str) -> None:
    match path:
        case "/v1/models":
            exchange.reply(200, orjson.dumps(_models(replica)))
        case "/health" | "/ping":
            sick = replica.active is not None and replica.active.kind is FaultKind.UNHEALTHY
            exchange.reply(503 if sick else 200, b"", content_type=None)
        case "/version":
            exchange.reply(200, orjson.dumps({"version": VERSION}))
        case "/load":
            exchange.reply(200, orjson.dumps({"server_load": replica.in_flight}))
        case "/metrics":
            exchange.reply(200, _metrics(replica), content_type=METRICS_TYPE)
        case "/emulator/requests":
            exchange.reply(200, orjson.dumps([_received(received) for received in replica.requests]))
        case _:
            exchange.reply(200, orjson.dumps(state(replica)))


def _models(replica: EmulatedReplica) -> dict[str, object]:
    model = {
        "id": replica.settings.model,
        "object": "model",
        "created": 1700000000,
        "owned_by": "vllm",
        "root": replica.settings.model,
        "parent": None,
        "max_model_len": replica.settings.max_model_len,
        "permission": [PERMISSION],
    }
    adapters = [
        {**model, "id": name, "root": f"/adapters/{name}", "parent": model["id"], "max_model_len": None}
        for name in replica.settings.adapters
    ]
    return {"object": "list", "data": [model, *adapters]}


def _received(received: Received) -> dict[str, object]:
    return {
        "method": received.method,
        "path": received.path,
        "connection": received.connection,
        "at": received.at,
        "head": received.head.decode("latin-1"),
        "body": received.body.decode(errors="replace"),
        "body_base64": base64.b64encode(received.body).decode(),
    }


def state(replica: EmulatedReplica) -> dict[str, object]:
    """The counters of a replica."""
    fault, engines = replica.active, replica.engines
    return {
        "port": replica.port,
        "profile": replica.engine.model.profile.name,
        "time_scale": replica.engine.time_scale if replica.engine.time_scale < 1e300 else None,
        "fault": None if fault is None else {name: getattr(fault, name) for name in fault.__slots__},
        "running": replica.running,
        "waiting": replica.waiting,
        "kv_fraction": max(engine.model.kv_fraction for engine in engines),
        "in_flight": replica.in_flight,
        "received_total": replica.received_total,
        "aborted_total": sum(engine.aborted_total for engine in engines),
        "preemptions_total": sum(engine.model.preemptions_total for engine in engines),
        "prefix_cache_queries_total": sum(engine.model.cache.queried_tokens for engine in engines),
        "prefix_cache_hits_total": sum(engine.model.cache.hit_tokens for engine in engines),
        "prompt_tokens_total": sum(engine.prompt_tokens_total for engine in engines),
        "generation_tokens_total": sum(engine.generation_tokens_total for engine in engines),
        "connections_open": len(replica.connections),
        "connections_total": replica.connections_total,
        "answered": {f"{path} {status}": count for (path, status), count in sorted(replica.answered.items())},
        "finished": dict(replica.finished),
        "loop_waits": None if replica.loop_waits is None else replica.loop_waits.counts,
    }


def _faults(replica: EmulatedReplica, exchange: Exchange) -> None:
    """GET: the current fault. POST: switch it, here or, with `"replica": N`, at the Nth replica of this process."""
    if exchange.received.method == "POST":
        try:
            wanted = orjson.loads(exchange.received.body)
            fault = parse_fault(wanted)
            index = wanted.get("replica")
            if index is not None and (type(index) is not int or not 0 <= index < len(replica.peers)):
                raise ValueError(f"replica: {index!r} is not one of 0..{len(replica.peers) - 1}")
        except ValueError as error:
            exchange.reply(400, orjson.dumps({"detail": str(error)}))
            return
        target = replica if index is None else replica.peers[index]
        exchange.reply(200, orjson.dumps({"replica": replica.peers.index(target), "fault": wanted["fault"]}))
        target.fault(fault)
    elif exchange.received.method == "GET":
        exchange.reply(200, orjson.dumps([state(peer)["fault"] for peer in replica.peers]))
    else:
        exchange.reply(405, b'{"detail":"Method Not Allowed"}', b"allow: GET, POST\r\n")


def _metrics(replica: EmulatedReplica) -> bytes:
    ranks = [
        ({"engine": str(rank), "model_name": replica.settings.model}, engine)
        for rank, engine in enumerate(replica.engines)
    ]
    name = {"model_name": replica.settings.model}
    profile = replica.engine.model.profile
    config = {
        "block_size": profile.kv_block_tokens,
        "enable_prefix_caching": profile.prefix_caching,
        "kv_cache_size_tokens": profile.kv_capacity_tokens,
        "num_gpu_blocks": profile.kv_blocks,
    }
    active = ",".join(sorted(replica.adapters_in_flight))
    labels = {
        "max_lora": replica.settings.max_loras,
        "running_lora_adapters": active,
        "waiting_lora_adapters": "",
    }
    reasons = ("stop", "length", "abort", "error", "repetition")
    family, histogram = metrics.family, metrics.histogram
    lines = [
        *family(
            "vllm:num_requests_running",
            "gauge",
            "Number of requests in model execution batches.",
            [(mine, engine.model.running) for mine, engine in ranks],
        ),
        *family(
            "vllm:num_requests_waiting",
            "gauge",
            "Number of requests waiting to be processed.",
            [(mine, engine.model.waiting) for mine, engine in ranks],
        ),
        *family(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Number of waiting requests by reason.",
            [
                ({**mine, "reason": reason}, engine.model.waiting if reason == "capacity" else 0)
                for mine, engine in ranks
                for reason in ("capacity", "deferred")
            ],
        ),
        *family(
            "vllm:kv_cache_usage_perc",
            "gauge",
            "KV-cache usage. 1 means 100 percent usage.",
            [(mine, engine.model.kv_fraction) for mine, engine in ranks],
        ),
        *family(
            "vllm:num_preemptions_total",
            "counter",
            "Cumulative number of preemption from the engine.",
            [(mine, engine.model.preemptions_total) for mine, engine in ranks],
        ),
        *family(
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prefix cache queries, in terms of number of queried tokens.",
            [(mine, engine.model.cache.queried_tokens if profile.prefix_caching else 0) for mine, engine in ranks],
        ),
        *family(
            "vllm:prefix_cache_hits_total",
            "counter",
            "Prefix cache hits, in terms of number of cached tokens.",
            [(mine, engine.model.cache.hit_tokens) for mine, engine in ranks],
        ),
        *family(
            "vllm:prompt_tokens_total",
            "counter",
            "Number of prefill tokens processed.",
            [(mine, engine.prompt_tokens_total) for mine, engine in ranks],
        ),
        *family(
            "vllm:generation_tokens_total",
            "counter",
            "Number of generation tokens processed.",
            [(mine, engine.generation_tokens_total) for mine, engine in ranks],
        ),
        *family(
            "vllm:request_success_total",
            "counter",
            "Count of successfully processed requests.",
            [({**ranks[0][0], "finished_reason": reason}, replica.finished[reason]) for reason in reasons],
        ),
        *family(
            "vllm:admission_rejections_total",
            "counter",
            "Number of admission attempts rejected by a queue limit, by reason.",
            [
                ({**name, "reason": "max_num_queued_reqs"}, replica.rejected_total),
                ({**name, "reason": "max_num_queued_tokens"}, 0),
            ],
        ),
        *histogram(
            "vllm:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            [(mine, engine.ttft) for mine, engine in ranks],
        ),
        *histogram(
            "vllm:e2e_request_latency_seconds",
            "Histogram of e2e request latency in seconds.",
            [(mine, engine.e2e) for mine, engine in ranks],
        ),
        *histogram(
            "vllm:request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            [(mine, engine.queue_time) for mine, engine in ranks],
        ),
        *histogram(
            "vllm:request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            [(mine, engine.prefill_time) for mine, engine in ranks],
        ),
        *(
            family("vllm:lora_requests_info", "gauge", "Running stats on lora requests.", [(labels, time.time())])
            if replica.settings.adapters
            else ()
        ),
        *family(
            "vllm:cache_config_info",
            "gauge",
            "Information of the LLMEngine CacheConfig",
            [({**config, "engine": rank}, 1) for rank in range(len(ranks))],
        ),
    ]
    return ("\n".join(lines) + "\n").encode()
