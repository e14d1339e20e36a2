"""One live run: starts replicas, gateway and clients, watches them while requests are counted, and ends them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import orjson

from loadtests.children import Children
from loadtests.live.generator import BEGINS, MODEL, Order, Report
from loadtests.live.planned import PlannedRequest
from loadtests.live.scaled import Key, scaled
from loadtests.live.start import GATEWAY_LISTENS, Broken, from_checkout, gateway, ready, replicas
from loadtests.processes import raise_file_limit, tree_usage
from loadtests.waits import edge_of

FILES = 16384
WAITS = re.compile(r'^tailgate_loop_wait_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """The traffic, the same for every candidate. Times in real seconds from the beginning."""

    policy: str
    """The text of the policy. Its durations are in virtual time."""
    requests: Sequence[PlannedRequest]
    keys: Sequence[Key]
    scale: float
    """Virtual seconds per real one."""
    warmup_s: float
    seconds: float
    grace_s: float
    replicas: int = 4
    slow: Mapping[int, float] = field(default_factory=dict)
    """Factor on every step of a replica, by its index."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process during the counted time: waits on its event loop by bucket of `EDGES`, and its share of a core."""

    waits: tuple[float, ...]
    cpu: float

    @property
    def lag_p99_s(self) -> float:
        """The upper edge of the bucket with the 99th percentile."""
        return edge_of(self.waits, 0.99)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run: all requests, warm-up included, and the processes by name."""

    name: str
    requests: list[PlannedRequest]
    warmup_s: float
    processes: dict[str, Process]
    chunks_per_s: float
    """Mean content events per second of the counted time, over all clients."""
    most_open: int

    @property
    def counted(self) -> list[PlannedRequest]:
        """The requests after the warm-up."""
        return [request for request in self.requests if request.at >= self.warmup_s]

    @property
    def lag_p99_s(self) -> float:
        """The largest lag (p99, in seconds) of any process."""
        return max(process.lag_p99_s for process in self.processes.values())


def run(name: str, baseline: str | None, load: Load, tell: Callable[[str], None]) -> Run:
    """Run the load on the gateway, or on a baseline in its place. Raises Broken if a process ends or does not start."""
    return run_together({name: (baseline, load)}, tell)[0]


Candidate = tuple[str | None, Load]
"""A baseline in the gateway's place, or None, and the load that it gets."""


def run_together(candidates: Mapping[str, Candidate], tell: Callable[[str], None]) -> list[Run]:
    """Run candidates, by name, at the same time, each with its own replicas and clients.

    Raises Broken as `run` does, and ends the other runs then.
    """
    raise_file_limit(FILES)
    return asyncio.run(_run_together(candidates, tell))


async def _run_together(candidates: Mapping[str, Candidate], tell: Callable[[str], None]) -> list[Run]:
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(_run(name, *of, tell)) for name, of in candidates.items()]
    except ExceptionGroup as errors:  # the first one ended the other runs
        raise errors.exceptions[0] from None
    return [one.result() for one in running]


async def _run(name: str, baseline: str | None, load: Load, tell: Callable[[str], None]) -> Run:
    with TemporaryDirectory(prefix="tailgate-live-") as folder:
        async with Children(lambda child, line: tell(f"{name}: {line}") if child == "clients" else None) as children:
            return await _Run(name, baseline, load, Path(folder), children).go()


class _Run:
    def __init__(self, name: str, baseline: str | None, load: Load, folder: Path, children: Children) -> None:
        self._name = name
        self._baseline = baseline
        self._load = load
        self._folder = folder
        self._children = children
        self._pids: dict[str, int] = {}

    async def go(self) -> Run:
        load = self._load
        urls, state = await self._start_replicas()
        async with httpx.AsyncClient(trust_env=False, timeout=10.0) as http:
            for index, factor in load.slow.items():
                fault = {"fault": "slow", "factor": factor, "replica": index}
                (await http.post(f"{urls[0]}/emulator/faults", json=fault)).raise_for_status()
        api, admin = await self._start_gateway(urls)
        begins_at = await self._start_clients(api)
        async with httpx.AsyncClient(trust_env=False, timeout=10.0) as http:
            await self._sleep_until(begins_at + load.warmup_s)
            first = await self._read(http, state, admin)
            await self._sleep_until(begins_at + load.warmup_s + load.seconds)
            last = await self._read(http, state, admin)
        ended = await self._children.died
        if ended.name != "clients" or ended.process.returncode:
            raise Broken(ended.how_it_ended)
        report = orjson.loads((self._folder / "report.json").read_bytes())
        return self._made(
            Report(**{**report, "requests": [PlannedRequest(**request) for request in report["requests"]]}), first, last
        )

    async def _start_replicas(self) -> tuple[list[str], str]:
        """The URLs of the replicas, and of the state of their process."""
        urls, child = await replicas(self._children, self._load.replicas, MODEL, self._load.scale)
        self._pids["replicas"] = child.process.pid
        return urls, f"{urls[0]}/emulator/state"

    async def _start_gateway(self, urls: Sequence[str]) -> tuple[str, str]:
        """The URLs of the gateway's API and admin pages."""
        path = self._folder / "policy.json"
        path.write_text(scaled(self._load.policy, self._load.scale, urls, self._load.keys))
        found = await self._start("gateway", gateway(path, self._baseline), GATEWAY_LISTENS)
        return found[1], found[2]

    async def _start_clients(self, api: str) -> float:
        """The time at which the clients begin, by the monotonic clock."""
        load = self._load
        until_s = load.warmup_s + load.seconds
        order = Order(api, load.warmup_s, until_s, load.grace_s, list(load.requests))
        order_path, report_path = self._folder / "order.json", self._folder / "report.json"
        order_path.write_bytes(orjson.dumps(asdict(order)))
        command = from_checkout("loadtests.live.generator", str(order_path), str(report_path))
        return float((await self._start("clients", command, BEGINS))[1])

    async def _start(self, name: str, command: Sequence[str], says: str) -> re.Match[str]:
        child = await self._children.start(name, command, says)
        self._pids[name] = child.process.pid
        return await ready(child, self._children)

    async def _sleep_until(self, at: float) -> None:
        """Sleep until a monotonic time. Raises Broken if a process ends meanwhile."""
        while (left_s := at - time.monotonic()) > 0:
            await asyncio.wait([self._children.died], timeout=left_s)
            if self._children.died.done():
                raise Broken(self._children.died.result().how_it_ended)

    async def _read(self, http: httpx.AsyncClient, state: str, admin: str) -> dict[str, Reading]:
        replicas, gateway = await asyncio.gather(http.get(state), http.get(f"{admin}/metrics"))
        below = [float(count) for _, count in WAITS.findall(gateway.text)]
        waits = {
            "replicas": replicas.json()["loop_waits"],
            "gateway": [after - before for before, after in pairwise([0.0, *below])],
        }
        now = time.monotonic()
        return {name: Reading(now, tree_usage(pid).cpu_s, waits.get(name, [])) for name, pid in self._pids.items()}

    def _made(self, report: Report, first: dict[str, Reading], last: dict[str, Reading]) -> Run:
        load = self._load
        processes = {}
        for name, before in first.items():
            after = last[name]
            waits = [b - a for a, b in zip(before.waits, after.waits, strict=True)]
            cpu = (after.cpu_s - before.cpu_s) / (after.at - before.at)
            processes[name] = Process(tuple(waits or report.waits), cpu)
        return Run(
            self._name, report.requests, load.warmup_s, processes, report.tokens / load.seconds, report.most_open
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """Figures of a process at one moment."""

    at: float
    cpu_s: float
    waits: list[float]
