"""The contender in front of the emulated replicas, started and ended for one test."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx

from loadtests.children import Children
from loadtests.live.start import GATEWAY_LISTENS, START_S, Broken, gateway, ready, replicas
from loadtests.peers import install
from loadtests.peers.install import Skipped
from loadtests.peers.nginx import nginx_command
from loadtests.processes import free_port
from loadtests.scenarios.file import (
    MODEL,
    OURS,
    RECOVER,
    ContenderSection,
    EventSection,
    ScenarioFile,
    environment,
    policy_path,
)

ADMIN_TOKEN = "tg-scenario-admin-token-0123456789"
RELOAD_S = 10.0
"""Seconds until a gateway must have read a policy: without change events of the system, it looks every five seconds."""


@dataclass(slots=True)
class RunningContender:
    """Addresses of a started contender: for requests, of the replicas, and of the gateway's admin pages."""

    url: str
    replicas: list[str]
    admin: str | None = None
    policy: Path | None = None
    """The file that the gateway watches."""
    store_pid: int | None = None
    listed: set[int] = field(default_factory=set)
    """Numbers of the replicas in the file beside it, which policies with `discover` follow."""

    def publish(self) -> None:
        """Write that file."""
        assert self.policy is not None
        targets = [self.replicas[number - 1].removeprefix("http://") for number in sorted(self.listed)]
        written = self.policy.with_name(".replicas")
        written.write_text(json.dumps([{"targets": targets}]))
        written.replace(self.policy.with_name("replicas.json"))


Command = Callable[[int, Sequence[str], Path], list[str]]
"""A function of (port, replicas, folder for files) that returns the command line of a contender. Raises Skipped."""


def key_of(tier: str) -> str:
    """The API key of a tier; its hash is in the policies of the scenarios."""
    return f"tg-scenario-{tier}"


async def start(
    scenario: ScenarioFile, contender: ContenderSection, children: Children, folder: Path
) -> RunningContender:
    """Start replicas and the contender in front of them, and wait until they are ready. Raises Broken or Skipped."""
    fleet = scenario.replicas, MODEL, scenario.time_scale
    urls, _ = await replicas(children, *fleet, "--profile", scenario.profile)
    policy = policy_path(contender.policy or scenario.policy)
    if contender.kind in PROXIES:
        port = free_port()
        command = PROXIES[contender.kind](port, urls, folder)
        child = await children.start(contender.kind, command, r"$^")
        running = RunningContender(f"http://127.0.0.1:{port}", urls)
    else:
        watched = folder / "policy"
        watched.mkdir()
        running = RunningContender("", urls, policy=watched / "policy.yaml")
        assert running.policy is not None
        running.policy.write_text(policy.read_text())
        running.listed = set(range(1, len(urls) + 1) if scenario.listed is None else scenario.listed)
        running.publish()
        command = _gateway(contender, running.policy, urls)
        if contender.store:
            command += ["--store", await _store(running, children)]
        child = await children.start(contender.called, command, GATEWAY_LISTENS)
        found = await ready(child, children)
        running.url = found[1]
        running.admin = found[2] if contender.kind == OURS else None
    try:
        await _until_answered(running.url, len(urls), children)
    except (Broken, TimeoutError) as error:
        said = str(error) or f"no answer within {START_S:g} s"
        if contender.kind not in PROXIES:
            raise Broken(said) from None
        raise Skipped(f"it did not start: {said.splitlines()[0]}") from None
    return running


async def _store(running: RunningContender, children: Children) -> str:
    """Start a store. Returns its URL. Raises Skipped if there is no redis-server."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise Skipped("there is no redis-server: apt-get install redis-server")
    port = free_port()
    options = ("--port", f"{port}", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    child = await children.start("store", [program, *options], "Ready to accept connections")
    await ready(child, children)
    running.store_pid = child.process.pid
    return f"redis://127.0.0.1:{port}/0"


async def happen(event: EventSection, running: RunningContender, part: float) -> None:
    """Carry out an event, at a `part` of its time. Drains and reloads only concern our gateway."""
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as http:
        if event.fault is not None:
            assert event.replica is not None
            said: dict[str, object] = {"fault": None if event.fault == RECOVER else event.fault}
            said |= {"replica": event.replica - 1}
            if event.factor is not None:
                said["factor"] = event.factor
            if event.lasts is not None:
                said["for_s"] = event.lasts * part
            # Any replica that answers passes the fault on to the others.
            (
                await http.post(f"{running.replicas[event.replica % len(running.replicas)]}/emulator/faults", json=said)
            ).raise_for_status()
        elif event.list is not None or event.unlist is not None:
            if running.policy is not None:
                running.listed = (running.listed | {event.list}) - {event.unlist, None}  # type: ignore[assignment]
                running.publish()
        elif running.admin is not None:
            http.headers["authorization"] = f"Bearer {ADMIN_TOKEN}"
            if event.reload is not None:
                await _reload(event.reload, running, http)
                return
            if event.kill == "store":
                if running.store_pid is not None:  # else it is a contender that shows what the fault costs
                    os.kill(running.store_pid, signal.SIGSTOP)
                return
            if event.kill is not None:
                state = (await http.get(f"{running.admin}/admin/state")).raise_for_status().json()
                # A gateway of one process is not ended: it is a contender that shows what the fault costs.
                if state["relays"]:
                    os.kill(state["pid"] if event.kill == "decider" else state["relays"][0]["pid"], signal.SIGKILL)
                return
            what, replica = ("drain", event.drain) if event.drain else ("undrain", event.undrain)
            (await http.post(f"{running.admin}/admin/{what}", json={"replica": replica})).raise_for_status()


async def _reload(name: str, running: RunningContender, http: httpx.AsyncClient) -> None:
    """Replace the policy of the gateway. Raises Broken if it is not in force soon."""
    assert running.policy is not None
    content = policy_path(name).read_bytes()
    written = running.policy.with_name(".next")
    written.write_bytes(content)
    written.replace(running.policy)
    wanted, until = hashlib.sha256(content).hexdigest(), time.monotonic() + RELOAD_S
    while (found := await _policy(running, http))["digest"] != wanted:
        if found["reload_error"]:
            raise Broken(f"the gateway refuses {name}: {found['reload_error']}")
        if time.monotonic() >= until:
            raise Broken(f"{name} is not in force {RELOAD_S:g} s after it replaced the policy")
        await asyncio.sleep(0.05)


async def _policy(running: RunningContender, http: httpx.AsyncClient) -> dict[str, Any]:
    """The policy as the gateway reports it."""
    state = (await http.get(f"{running.admin}/admin/state")).raise_for_status().json()
    return cast("dict[str, Any]", state["policy"])


async def _until_answered(url: str, replicas: int, children: Children) -> None:
    """Wait for as many answers in a row as there are replicas, so that all are reachable.

    If a gateway wants a key, this only shows that it listens.
    """
    body = {"model": MODEL, "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http, asyncio.timeout(START_S):
        row = 0
        while row < replicas:
            if children.died.done():
                raise Broken(children.died.result().how_it_ended)
            try:
                status = (await http.post(f"{url}/v1/chat/completions", json=body)).status_code
            except httpx.HTTPError:
                status = 0
            row = row + 1 if status in (200, 401) else 0
            if not row:
                await asyncio.sleep(0.1)


# ---- command lines


def _gateway(contender: ContenderSection, policy: Path, replicas: Sequence[str]) -> list[str]:
    """The command line of our gateway, or of a baseline of the simulator in its place."""
    given = [f"{name}={url}" for name, url in environment(replicas).items()]
    given += [f"TAILGATE_ADMIN_TOKEN={ADMIN_TOKEN}", f"TAILGATE_WORKERS={contender.workers}"]
    return gateway(policy, None if contender.kind == OURS else contender.kind, given)


def _nginx(port: int, replicas: Sequence[str], folder: Path) -> list[str]:
    return nginx_command(port, [int(url.rpartition(":")[2]) for url in replicas], folder, balance="least_conn;")


def _vllm_router(port: int, replicas: Sequence[str], folder: Path) -> list[str]:
    options = ["--host", "127.0.0.1", "--port", f"{port}", "--prometheus-port", f"{free_port()}"]
    return [str(install.vllm_router()), "--worker-urls", *replicas, "--worker-startup-check-interval", "1", *options]


def _litellm(port: int, replicas: Sequence[str], folder: Path) -> list[str]:
    models = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in replicas
    ]
    config = {"model_list": models, "router_settings": {"routing_strategy": "least-busy"}}
    (folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML
    # It downloads nothing and asks for no key: it listens on loopback, for one test.
    quiet = ["env", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_LOG=ERROR"]
    quiet += ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true"]
    return [
        *quiet,
        str(install.litellm()),
        "--config",
        str(folder / "litellm.yaml"),
        "--host",
        "127.0.0.1",
        "--port",
        f"{port}",
    ]


PROXIES: dict[str, Command] = {"nginx": _nginx, "vllm-router": _vllm_router, "litellm": _litellm}
