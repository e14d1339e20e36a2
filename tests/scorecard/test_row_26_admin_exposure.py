"""Row 26: the API port serves only the API: no metrics, no state, no control, no paths of engines."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from gateway.app import Gateway
from gateway.wire.target import POSTS

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import Client, head, request

KEY = "the-key-of-a-client"
TOKEN = "a-token-for-the-admin"
ON_BOTH = {"/health", "/ready"}
"""Probes: they say whether the gateway is up, and nothing else."""

# Paths of engines, frameworks and other gateways, without those of the API.
ELSEWHERE = """
/ /admin /admin/ /admin/drain /admin/faults /admin/state/ /admin/config /admin/keys //admin/state
/./admin/state /v1/admin/state /%61dmin/state /admin%2fstate /metrics/ /Metrics /METRICS /metrics?x=1
/v1/metrics /v1/../metrics /metrics;a=b /metrics%00 /metrics. /livez /readyz /healthz
/status /state /config /policy /console /debug /debug/pprof /docs /redoc /openapi.json /favicon.ico /static/
/.env /.git/config /server-status /actuator /actuator/env /_cluster/health /ping /version /load /tokenize
/detokenize /pooling /classify /score /rerank /v1/score /v1/rerank /invocations /inference/v1/generate /pause
/resume /is_paused /sleep /wake_up /is_sleeping /reset_prefix_cache /reset_mm_cache /update_weights
/init_weights_update /scale_elastic_ep /is_scaling_elastic_ep /collective_rpc /start_profile /stop_profile
/server_info /get_server_info /v1/load_lora_adapter /v1/unload_lora_adapter /generate /generate_stream /encode
/flush_cache /get_model_info /get_load /set_internal_state /abort_request /release_memory_occupation
/update_weights_from_disk /start_expert_distribution_record /v1/audio/transcriptions /v1/audio/translations
/v1/files /v1/batches /v1/responses/resp_1 /v1/responses/resp_1/cancel /v1/messages/count_tokens
/v1/messages/batches /v1/chat/completions/render /v1/chat /v1 /v1/ /v1/realtime /emulator/faults
/emulator/state /emulator/requests /key/generate /user/new /team/new /model/new /config/update /cache/flushall
/spend/logs
"""
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")


def _paths(gw: Gateway) -> set[str]:
    """Every path of the admin port."""
    app = gw.listeners[1].config.app
    assert isinstance(app, FastAPI)
    return {path.replace("{action}", "reload") for path in app.openapi()["paths"]}


@pytest.mark.parametrize("keys", [{}, {KEY: "acme"}], ids=["without keys", "with keys"])
async def test_admin_paths_are_not_found_on_the_api_port(
    gateway: GatewayFactory, capture: Capture, connect: Connect, keys: dict[str, str]
) -> None:
    gw = await gateway(rules(capture.url, keys=keys), admin_token=TOKEN)
    served = _paths(gw)
    assert {"/metrics", "/admin/state", "/admin/reload", "/", "/livez", "/readyz"} <= served
    client = await connect(gw.url)
    found = []
    elsewhere = [path for path in ELSEWHERE.split() if path.encode() not in POSTS]
    for path in [*sorted(served - ON_BOTH), *elsewhere]:
        for method in METHODS:
            for credentials in ((), (f"Authorization: Bearer {KEY}",), (f"Authorization: Bearer {TOKEN}",)):
                answer = await _status(client, method, path, credentials)
                if answer != 404:
                    found.append((method, path, answer))
    assert found == []
    assert capture.calls == []


async def _status(client: Client, method: str, path: str, credentials: tuple[str, ...]) -> int:
    """The status of an answer; one to HEAD has no body."""
    body = ("Content-Length: 2",) if method in ("POST", "PUT", "PATCH") else ()
    client.send(head(path, *credentials, *body, method=method) + (b"{}" if body else b""))
    return (await client.head())[0] if method == "HEAD" else (await client.response()).status


async def test_health_and_ready_reveal_only_the_status(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for path, body in (("/health", b'{"status":"ok"}'), ("/ready", b'{"status":"ready"}')):
        assert (await client.ask(request(path))).body == body


async def test_admin_port_differs_from_the_api_port(gateway: GatewayFactory, capture: Capture) -> None:
    gw = await gateway(rules(capture.url))
    assert gw.url != gw.admin_url
    assert gw.admin_url.startswith("http://127.0.0.1:")
    async with httpx.AsyncClient(base_url=gw.admin_url) as client:
        assert {(await client.get(path)).status_code for path in ("/metrics", "/admin/state")} == {200}
        for path in ("/v1/chat/completions", "/v1/models"):
            assert (await client.post(path, content=b"{}")).status_code == 404
        # Reaching the port is not enough to change anything.
        assert (await client.post("/admin/reload")).status_code == 403
