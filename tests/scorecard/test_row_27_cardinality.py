"""Row 27: no text of a request becomes a label of a metric, with any name or path."""

from __future__ import annotations

import asyncio
import re

import httpx

from gateway.app import Gateway
from gateway.core.fleet.health.evidence import EjectionReason
from gateway.core.redundancy.hedging import HedgeDenied
from gateway.core.results import AttemptOutcome, HedgeResult, Outcome, Reason
from gateway.observe.metrics.facts import Decided, RefusalFamily

from .capture import Answer, Capture, by_default, whole
from .conftest import Connect, GatewayFactory
from .policies import sha256
from .raw import CHAT, MODEL, chat, chat_body, head, request
from .waiting import SOAK

REQUESTS = 10_000 if SOAK else 1_000
CLIENTS = 8
KEYS = {f"key-{number}": f"tenant-{number}" for number in range(3)}


OUTCOMES = {
    str(of.value)
    for kind in (Reason, Outcome, AttemptOutcome, HedgeResult, HedgeDenied, EjectionReason, Decided, RefusalFamily)
    for of in kind
}


def _policy(url: str) -> str:
    """With the model `*`, so that junk names reach the replica, too."""
    keys = "\n".join(f"  - {{sha256: {sha256(key)}, tenant: {tenant}, tier: free}}" for key, tenant in KEYS.items())
    return f"""\
apiVersion: tailgate/v1
models: {{{MODEL}: {{pools: [main]}}, "*": {{pools: [main]}}}}
pools: {{main: {{replicas: [{url}], slots: 64, health: {{failures: 1000000}}}}}}
tiers: {{free: {{max_tokens: {{limit: 100}}, slo: {{ttft: {{p99: 1s}}}}}}}}
keys:
{keys}
"""


async def _series(gw: Gateway) -> set[str]:
    """Name and labels of every sample on the metrics page, in both formats."""
    series = set()
    async with httpx.AsyncClient() as client:
        for accept in ("text/plain", "application/openmetrics-text"):
            page = await client.get(f"{gw.admin_url}/metrics", headers={"accept": accept})
            lines = [line for line in page.text.splitlines() if not line.startswith("#")]
            series |= {re.sub(r"(\}| ) ?\S+$", r"\1", line) for line in lines}
    return series


def _junk(number: int) -> bytes:
    """The Nth request, unique in everything that a client controls."""
    name = f"junk-{number}"
    key = f"x-api-key: key-{number // 12 % 3}"
    kinds = (
        chat(key, model=name),
        chat(key, f"X-Request-Id: {name}", user=name, metadata={name: name}),
        chat(f"x-api-key: {name}"),
        chat(key, max_tokens=name),
        chat(key, stream=True, model=name + "/" + "x" * (number % 100)),
        request(f"/v1/{name}", chat_body(), key),
        request(f"/{name}", None, key),
        request(f"/v1/models/{name}", None, key),
        request(f"{CHAT}?{name}={name}", chat_body(), key),
        head(CHAT, key, f"X-{name}: {name}", method="DELETE"),
        request(CHAT, f'{{"{name}'.encode(), key),
        chat(key, f"User-Agent: {name}", f"Host-{name}: x", f"x-tailgate-tier: {name}"),
    )
    return kinds[number % len(kinds)]


def _answer(call) -> Answer:
    """Some of them fail, in ways that involve the model's name."""
    if b"junk" in call.body and len(call.body) % 3 == 0:
        return Answer(whole(b'{"error":{"message":"junk","type":"junk","code":"junk"}}', "404 Not Found"))
    return by_default(call)


def _labels(series: set[str]) -> set[str]:
    """All values of labels."""
    return {value for line in series for value in re.findall(r'="((?:[^"\\\\]|\\\\.)*)"', line)}


async def test_unknown_names_create_no_metric_series(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = _answer
    gw = await gateway(_policy(capture.url))
    clients = [await connect(gw.url) for _ in range(CLIENTS)]
    # One of each kind, so that every outcome occurs once.
    for number in range(1000, 1072):
        await clients[0].ask(_junk(number))
    before = await _series(gw)
    assert len(before) > 100

    statuses: set[int] = set()

    async def ask(client, numbers: range) -> None:
        for number in numbers:
            statuses.add((await client.ask(_junk(number))).status)

    await asyncio.gather(*(ask(client, range(2000 + i, 2000 + REQUESTS, CLIENTS)) for i, client in enumerate(clients)))
    assert statuses == {200, 400, 401, 404, 405}
    after = await _series(gw)
    # A slow machine may add an outcome, such as a timeout. A request can add none.
    assert _labels(after) - _labels(before) <= OUTCOMES
    assert not [line for line in after if "junk" in line or "tenant" in line]
    state = await _state(gw)
    assert "junk" not in state
    assert len(gw.controller.snapshot(0.0).tenants) == len(KEYS)


async def _state(gw: Gateway) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{gw.admin_url}/admin/state")).text
