"""A large fleet from a file, of which a part is replaced at once under load: how late the gateway's loop is meanwhile.

The gateway runs in this process, so that the lag of its loop is sampled exactly.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.core.snapshot import ReplicaState
from gateway.garbage import tune_collector
from gateway.policy import load as load_policy
from gateway.settings import Settings
from loadtests.bench.openloop import Open
from loadtests.bench.policy import policy
from loadtests.processes import on_cores, raise_file_limit
from loadtests.quantiles import rank

SAMPLE_S = 0.001
READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """A replica at each of `ports`, but for `changed` of them, which later replace as many of the first ones. Meanwhile
    `rate` requests a second are sent.
    """

    ports: tuple[int, ...]
    changed: int
    rate: float = 100.0
    seconds: float = 6.0
    """With `settle_s` below 10: the gateway closes connections on which nothing was sent for so long."""
    settle_s: float = 2.0
    """Seconds before each measurement, so that first readings and requests are over."""
    load_cores: tuple[int, ...] = ()
    """Cores of the generator; empty: any."""


@dataclass(frozen=True, slots=True)
class FleetResult:
    """From the change to the end. `busy_p99_s`: CPU time of the loop between two samples, which is its lag on a machine
    that nothing else uses. `idle_cpu`: CPU seconds a second before there were requests.
    """

    lag_p99_s: float
    lag_max_s: float
    busy_p99_s: float
    busy_max_s: float
    idle_cpu: float
    requests: int
    p99_s: float
    errors: list[str]


def write_targets(file: Path, ports: Sequence[int]) -> None:
    """List a replica at each of `ports`, as Prometheus's `file_sd`."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}" for port in ports]}]))
    new.replace(file)


def prepare(spec: Fleet) -> None:
    """Set this process up for `run_fleet`, with garbage collection as in the gateway's process."""
    raise_file_limit(8 * len(spec.ports))
    logging.disable(logging.WARNING)  # a line for each replica that comes
    tune_collector()


async def run_fleet(spec: Fleet) -> FleetResult:
    """Measure one change."""
    with tempfile.TemporaryDirectory() as folder:
        targets, place = _written(Path(folder), spec)
        async with Gateway(Settings(port=0, admin_port=0), load_policy(place), place) as gateway:
            return await _measured(spec, gateway, targets)


def _written(folder: Path, spec: Fleet) -> tuple[Path, Path]:
    """The files of targets and of the policy."""
    targets, place = folder / "targets.json", folder / "policy" / "policy.yaml"
    write_targets(targets, spec.ports[: -spec.changed])
    place.parent.mkdir()  # a folder of its own: tailgate watches it
    written: dict[str, Any] = json.loads(policy([1, 2], 0.02))
    for model in written["models"].values():
        model["pools"] = ["main"]
    written["pools"] = {"main": {"engine": "vllm", "discover": {"file": str(targets)}, "slots": 64}}
    place.write_text(json.dumps(written))
    return targets, place


async def _measured(spec: Fleet, gateway: Gateway, targets: Path) -> FleetResult:
    replicas = len(spec.ports) - spec.changed
    async with asyncio.timeout(READY_S):
        while _up(gateway) < replicas:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.1)
    await asyncio.sleep(spec.settle_s)
    began_at, cpu_s = time.monotonic(), time.process_time()
    await asyncio.sleep(spec.seconds / 2)
    idle_cpu = (time.process_time() - cpu_s) / (time.monotonic() - began_at)
    order = Open(int(gateway.url.rpartition(":")[2]), spec.rate, spec.seconds + spec.settle_s, connections=8)
    sent = asyncio.create_task(_send(order, spec))
    await asyncio.sleep(spec.settle_s)
    lags: list[float] = []
    busy: list[float] = []
    sampled = asyncio.create_task(_sample(lags, busy))
    write_targets(targets, spec.ports[spec.changed :])
    result = await sent
    sampled.cancel()
    lags.sort()
    busy.sort()
    errors = [*result["errors"]]
    if len(gateway.controller.states()) != replicas or _up(gateway) < replicas:
        errors.append(f"{_up(gateway)} replicas were up at the end")
    taken = rank(lags, 0.99), lags[-1], rank(busy, 0.99), busy[-1], idle_cpu
    return FleetResult(*taken, result["requests"], result["p99_s"], errors)


def _up(gateway: Gateway) -> int:
    return sum(state is ReplicaState.UP for _, _, state, _ in gateway.controller.states())


async def _sample(lags: list[float], busy: list[float]) -> None:
    while True:
        began_at, cpu_s = time.monotonic(), time.thread_time()
        await asyncio.sleep(SAMPLE_S)
        lags.append(time.monotonic() - began_at - SAMPLE_S)
        busy.append(time.thread_time() - cpu_s)


async def _send(order: Open, spec: Fleet) -> dict[str, Any]:
    """Send the load from a process of its own."""
    with on_cores(frozenset(spec.load_cores) or None):
        command = [sys.executable, "-m", "loadtests.bench.load"]
        sender = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    said, _ = await sender.communicate(json.dumps({"kind": "open", **asdict(order)}).encode())
    result: dict[str, Any] = json.loads(said)
    return result
