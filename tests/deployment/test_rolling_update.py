"""Two gateways behind HAProxy or nginx are replaced one after the other under load: no request fails."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.sim.engine.profiles import PROFILES
from loadtests.emulator import Emulator
from loadtests.processes import free_port
from tests.deployment.balancers import Balancer, first_answer, haproxy, needs_haproxy, needs_nginx, nginx
from tests.scorecard.policies import rules
from tests.scorecard.process import serving
from tests.scorecard.raw import MODEL, chat_body
from tests.scorecard.test_several_processes import in_flight, seen

PER_S = 12.0
TOKENS = 80
MANY_WORDS = 10_000
"""In most requests: HAProxy sends only those again that fit its buffer of 16 KiB."""
PROFILE = replace(
    PROFILES["test"],
    max_model_len=50_000,
    max_batched_tokens=50_000,
    kv_capacity_tokens=1_000_000,
    prefill_s_per_token=0.0,
)
TIME_SCALE = 0.01  # 30 ms a token: a stream takes some 2.4 s


class Load:
    """Requests at a fixed rate, every fourth unstreamed, over kept and over new connections."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.sent = 0
        self.ends: Counter[str] = Counter()
        """How requests ended: `whole`, or what was wrong."""
        self.is_over = False

    async def run(self) -> None:
        """Send until it is over; then wait for all answers."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with (
            httpx.AsyncClient(timeout=30.0) as kept,
            httpx.AsyncClient(timeout=30.0, limits=httpx.Limits(max_keepalive_connections=0)) as new,
            asyncio.TaskGroup() as group,
        ):
            while not self.is_over:
                client = (kept, new)[self.sent % 2]
                group.create_task(self._ask(client, is_streamed=self.sent % 4 != 3))
                self.sent += 1
                due += 1 / PER_S
                await asyncio.sleep(due - loop.time())

    async def _ask(self, client: httpx.AsyncClient, is_streamed: bool) -> None:
        said = [{"role": "user", "content": "Hello " * (MANY_WORDS if self.sent % 3 else 1)}]
        body = {"model": MODEL, "messages": said, "max_tokens": TOKENS, "min_tokens": TOKENS, "stream": is_streamed}
        try:
            answer = await client.post(f"{self._url}/v1/chat/completions", json=body)
        except httpx.TransportError as error:
            self.ends[f"{'stream' if is_streamed else 'answer'} failed: {error!r}"] += 1
            return
        if answer.status_code != 200:
            self.ends[f"{answer.status_code}: {answer.text}"] += 1
        elif is_streamed and not (
            answer.text.count('"content"') >= TOKENS and answer.text.endswith("data: [DONE]\n\n")
        ):
            self.ends[f"cut stream, its end: {answer.text[-300:]}"] += 1
        else:
            self.ends["whole"] += 1


def is_busy(state: dict[str, Any]) -> bool:
    return in_flight(state) >= 5


@pytest.mark.long
@pytest.mark.parametrize(
    "balancer", [pytest.param(haproxy, marks=needs_haproxy), pytest.param(nginx, marks=needs_nginx)]
)
async def test_two_gateways_behind_a_balancer_are_replaced_under_load_without_a_failure(
    tmp_path: Path, balancer: Balancer
) -> None:
    ports = [(free_port(), free_port()) for _ in range(2)]
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Emulator(replicas=3, profile=PROFILE, time_scale=TIME_SCALE))
        start = partial(serving, tmp_path, rules(*fleet.urls, slots=16), TAILGATE_DRAIN_NOTICE_S="5")
        gateways = [await stack.enter_async_context(start(ports=each)) for each in ports]
        addresses = [(f"127.0.0.1:{api}", str(admin)) for api, admin in ports]
        url = await stack.enter_async_context(balancer(tmp_path, addresses))
        await first_answer(f"{url}/v1/chat/completions", chat_body(max_tokens=1))
        load = Load(url)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run())
            for number, old in enumerate(gateways):
                await seen(old, is_busy)
                old.signal(signal.SIGTERM)
                assert await old.exit_code() == 0, old.written.decode()
                assert b"Traceback" not in old.written
                await seen(await stack.enter_async_context(start(ports=ports[number])), is_busy)
            load.is_over = True
        assert load.ends == {"whole": load.sent}
