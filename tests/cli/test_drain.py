"""`tailgate drain` and `undrain` against a running gateway."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from gateway.app import Gateway
from gateway.cli.app import app
from gateway.core.pool_spec import ReplicaSpec
from gateway.core.sample import Proof, Sample
from gateway.core.snapshot import ReplicaState
from gateway.policy import load_text
from gateway.settings import Settings
from loadtests.emulator import Emulator

TOKEN = "a-token-for-the-admin-port"
POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools:
  main:
    slots: 4
    router: round-robin
    replicas: [{{name: r1, url: "{}"}}, {{name: r2, url: "{}"}}]
tiers: {{only: {{}}}}
"""

NOBODY = ("http://127.0.0.1:1", "http://127.0.0.1:2")


@dataclass
class Served:
    """A gateway in front of two replicas."""

    gateway: Gateway
    emulator: Emulator
    client: httpx.AsyncClient

    async def command(self, *arguments: str, token: str = TOKEN) -> Result:
        """Run a command as from a shell."""
        where = ["--admin", self.gateway.admin_url]
        env = {"TAILGATE_ADMIN_TOKEN": token, "COLUMNS": "300"}
        return await asyncio.to_thread(CliRunner().invoke, app, [*arguments, *where], env=env)

    async def asked(self, count: int) -> set[str]:
        """The replicas that answer this many requests."""
        body = {"model": "emulated", "prompt": "hello", "max_tokens": 2}
        answers = [await self.client.post("/v1/completions", json=body) for _ in range(count)]
        assert {answer.status_code for answer in answers} == {200}
        return {answer.headers["x-tailgate-replica"] for answer in answers}


def _state_of(gateway: Gateway, replica: str) -> ReplicaState:
    return next(state for _, name, state, _ in gateway.controller.states() if name == replica)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Emulator(replicas=2) as emulator:
        settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, admin_token=SecretStr(TOKEN))
        async with (
            Gateway(settings, load_text(POLICY.format(*emulator.urls), "policy.yaml", {})) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=20) as client,
        ):
            yield Served(gateway, emulator, client)


async def test_drained_replica_gets_no_request_until_it_is_undrained(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tailgate"):
        drained = await served.command("drain", "r1")
        assert (drained.exit_code, drained.stdout) == (0, "r1 gets no new requests; 0 under way there go on\n")
        assert await served.asked(4) == {"r2"}
        undrained = await served.command("undrain", "r1")
        assert (undrained.exit_code, undrained.stdout) == (0, "r1 serves again\n")
    assert await served.asked(8) == {"r1", "r2"}
    told = [record.getMessage() for record in caplog.records if "replica r1" in record.getMessage()]
    assert told == ["replica r1 of pool main is drained, was up", "replica r1 of pool main is up, was drained"]


async def test_dead_replica_is_logged_once_however_often_it_is_probed(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = served.gateway
    healthy, unhealthy = Sample(healthy=True), Sample(healthy=False)
    gateway.driver.observe("r1", healthy)
    with caplog.at_level(logging.INFO, "tailgate"):
        for sample in (unhealthy, unhealthy, unhealthy, healthy, unhealthy, healthy):
            gateway.driver.observe("r1", sample)
            gateway.sweeper.log_states()
        assert _state_of(gateway, "r1") is ReplicaState.PROBING
    told = [record.getMessage() for record in caplog.records if "replica r1" in record.getMessage()]
    assert told == [
        "replica r1 of pool main is down, was up: 3 x health check failed; it gets nothing, then single "
        "requests until one or a probe of the gateway succeeds",
    ]


async def test_replica_that_was_found_is_logged_from_its_first_check_on(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, before = served.gateway, served.gateway.controller.policy
    pools = {
        name: replace(pool, replicas=(*pool.replicas, ReplicaSpec(f"new-{name}", "http://127.0.0.1:9", is_found=True)))
        for name, pool in before.pools.items()
    }
    gateway.driver.configure(replace(before, pools=pools))
    new = f"new-{next(iter(pools))}"
    with caplog.at_level(logging.INFO, "tailgate"):
        gateway.sweeper.log_states()
        assert f"replica {new}" not in caplog.text
        gateway.driver.observe(new, Sample(healthy=True, proof=Proof.LISTED))
        gateway.sweeper.log_states()
        assert _state_of(gateway, new) is ReplicaState.UP
        assert f"replica {new}" not in caplog.text
        for _ in range(3):
            gateway.driver.observe(new, Sample(healthy=False))
        gateway.sweeper.log_states()
    assert f"replica {new} of pool {next(iter(pools))} is down, was up: 3 x health check failed" in caplog.text


async def test_replica_that_was_never_seen_is_logged_as_absent(caplog: pytest.LogCaptureFixture) -> None:
    text = POLICY.format(*NOBODY)
    async with Gateway(Settings(port=0, admin_port=0, drain_deadline_s=0.0), load_text(text, "p.yaml", {})) as gateway:
        with caplog.at_level(logging.INFO, "tailgate"):
            for _ in range(3):
                gateway.driver.observe("r1", Sample(healthy=False))
            gateway.sweeper.log_states()
    told = [record.getMessage() for record in caplog.records if "replica r1 of pool" in record.getMessage()]
    why = r"\d x health check failed; it has not been seen alive since it was added"
    assert len(told) == 1, "the gateway's own first check may come before or after these"
    assert re.fullmatch(f"replica r1 of pool main is absent: {why}", told[0])


async def test_drain_command_waits_for_running_requests_up_to_its_limit(served: Served) -> None:
    for replica in served.emulator.replicas:
        replica.fault("stall", after_events=3)
    body = {"model": "emulated", "prompt": "hello", "max_tokens": 40, "stream": True}
    async with served.client.stream("POST", "/v1/completions", json=body) as answer:
        busy = answer.headers["x-tailgate-replica"]
        result = await served.command("drain", busy, "--wait", "0.01")
        assert result.exit_code == 1
        assert result.stderr == f"1 request still under way at {busy}\n"
    done = await served.command("drain", busy, "--wait", "20")
    assert done.exit_code == 0


async def test_drain_command_exits_with_2_for_an_unknown_replica_or_wrong_token(served: Served) -> None:
    nobody = await served.command("drain", "r9")
    assert nobody.exit_code == 2
    assert "there is no replica 'r9'; known: r1, r2" in nobody.stderr
    stranger = await served.command("drain", "r1", token="wrong-wrong-wrong-wrong")
    assert stranger.exit_code == 2
    assert "wrong or missing admin token" in stranger.stderr
    assert await served.asked(8) == {"r1", "r2"}


async def test_explain_names_replicas_that_are_left_out(served: Served) -> None:
    await served.command("drain", "r2")
    run = ["explain", "--live", served.gateway.admin_url]
    result = await asyncio.to_thread(CliRunner().invoke, app, run, env={"COLUMNS": "300"})
    assert result.exit_code == 0
    assert "drained  r2" in result.stdout


async def test_drain_with_an_unusable_token_says_so_and_does_not_show_it(served: Served) -> None:
    told = await served.command("drain", "r1", token=TOKEN + "\n")
    assert told.exit_code == 2
    assert "TAILGATE_ADMIN_TOKEN has a line end" in told.stderr
    assert TOKEN not in told.output
