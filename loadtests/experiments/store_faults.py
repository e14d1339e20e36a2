"""The store of two gateways fails in every way: do clients notice, and does a limit hold?

A limit is used up. Each gateway gets as many requests as the limit allows both together. Errors and the added p99 are
counted until recovery, requests admitted over the limit during the fault.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx

from gateway.core.policy import ANONYMOUS, LimitKind
from gateway.driving.leases import key_of
from gateway.driving.store import KEY
from loadtests.charts.grid import Grid, grid_as_markdown
from loadtests.children import Children
from loadtests.experiments.findings import Findings, bare
from loadtests.experiments.real_store import PROGRAM, RealStore, SlowWay, real_store, url_of
from loadtests.experiments.runner import Runner
from loadtests.live.generator import MODEL
from loadtests.live.start import GATEWAY_LISTENS, Broken, gateway, ready, replicas
from loadtests.processes import Neighbours
from loadtests.quantiles import rank

LIMIT_PER_S = 20.0
OFFERED_PER_S = 2.0 * LIMIT_PER_S
RUNS, QUICK_RUNS = 3, 1
BEFORE_S, FAULT_S = 3.0, 6.0
MAX_RECOVERY_S = 20.0
POLL_S = 0.05
PASS_S = 0.5
SLOW_S = 0.2
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
LIMIT_KEY = key_of((ANONYMOUS, "free", LimitKind.REQUESTS))
POLICY = """\
apiVersion: tailgate/v1
models: {{{model}: {{pools: [main]}}}}
pools: {{main: {{replicas: [{url}]}}}}
tiers: {{free: {{limits: {{requests: {per_min:g}/min}}}}}}
defaults: {{tier: free}}
"""

Act = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `status` is 0 if there was none."""

    at: float
    took_s: float
    status: int


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of a fault on clients. `to_limit`: requests admitted during it over those that the limit allows."""

    errors: int
    p99_s: float
    to_limit: float
    recovery_s: float


@dataclass(slots=True)
class Clients:
    """They send to the gateways in turn, at a fixed rate, whatever comes back."""

    http: httpx.AsyncClient
    urls: Sequence[str]
    answers: list[Answer] = field(default_factory=list)

    async def run(self) -> None:
        """Send until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as group:
            for url in cycle(self.urls):
                group.create_task(self.ask(url))
                due += 1.0 / OFFERED_PER_S
                await asyncio.sleep(due - loop.time())

    async def ask(self, url: str) -> int:
        """The status of one request."""
        loop = asyncio.get_running_loop()
        at = loop.time()
        try:
            status = (await self.http.post(f"{url}/v1/chat/completions", json=BODY)).status_code
        except httpx.HTTPError:
            status = 0
        self.answers.append(Answer(at, loop.time() - at, status))
        return status

    async def use_up(self) -> None:
        """Send until hardly more is admitted than the limit allows in `PASS_S`."""
        admitted = math.inf
        while admitted > 1.5 * LIMIT_PER_S * PASS_S:
            await asyncio.sleep(PASS_S)
            admitted = (await asyncio.gather(*[self.ask(url) for url in self.urls for _ in range(20)])).count(200)

    def between(self, start: float, end: float) -> list[Answer]:
        """Answers to the requests of this time."""
        return [answer for answer in self.answers if start <= answer.at < end]


def store_faults(runner: Runner) -> Findings:
    """Every fault once, one after the other. Raises Broken."""
    if PROGRAM is None:
        raise Broken("there is no redis-server: apt-get install redis-server")
    neighbours = Neighbours()
    runs = range(1, 1 + (QUICK_RUNS if runner.effort.quick else RUNS))
    shown, calm = asyncio.run(_run(runner, runs))
    findings = Findings(runs)
    others = neighbours.share()
    told = "" if others is None else f" Others used {others:.0%} of the machine."
    findings.how = f"{60 * LIMIT_PER_S:g}/min; {len(runs)} faults of {FAULT_S:g} s each, medians.{told}"
    rows = [
        [
            name,
            str(each.errors),
            f"{1e3 * (each.p99_s - calm.p99_s):.0f}",
            f"{each.to_limit:.3f}",
            f"{each.recovery_s:.1f}",
        ]
        for name, each in shown.items()
    ]
    grid = Grid("Faults", ["store", "errors", "p99, ms", "admitted", "recovery, s"], rows)
    findings.grids.append(grid)
    findings.notes.append(grid_as_markdown(grid))
    findings.figures |= {
        "errors": bare(sum(each.errors for each in shown.values()), len(shown)),
        "most_p99_added_s": bare(max(each.p99_s for each in shown.values()) - calm.p99_s, len(shown)),
        "most_off_limit": bare(max(abs(each.to_limit - 1.0) for each in shown.values()), len(shown)),
        "longest_recovery_s": bare(max(each.recovery_s for each in shown.values()), len(shown)),
    }
    findings.raw |= {"calm": calm, **shown}
    return findings


async def _run(runner: Runner, runs: Sequence[int]) -> tuple[dict[str, Effects], Effects]:
    """The effects of each fault, and those of the times before the faults together."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="tailgate-store-faults-")))
        children = await stack.enter_async_context(Children(lambda name, line: None))
        store = await stack.enter_async_context(real_store())
        way = await stack.enter_async_context(SlowWay(store))
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=10.0))
        (engine,), _ = await replicas(children, 1, MODEL, 1.0)
        policy = folder / "policy.yaml"
        policy.write_text(POLICY.format(model=MODEL, url=engine, per_min=60 * LIMIT_PER_S))
        found = [
            await ready(
                await children.start(name, [*gateway(policy), "--store", url_of(way.port)], GATEWAY_LISTENS), children
            )
            for name in ("one", "two")
        ]
        clients = Clients(http, [each[1] for each in found])
        drill = _Drill(store, http, [each[2] for each in found])
        await drill.recovered()
        runner.tell("the limit is used up")
        await clients.use_up()
        loop = asyncio.get_running_loop()
        shown: dict[str, list[Effects]] = {}
        calm: list[Answer] = []
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(clients.run())
            for run, (name, (begin, end)) in product(runs, faults(store, way).items()):
                runner.tell(f"{name}, run {run}")
                start = loop.time()
                await asyncio.sleep(BEFORE_S)
                if children.died.done():
                    raise Broken(children.died.result().how_it_ended)
                began = loop.time()
                calm += clients.between(start, began)
                await begin()
                recovery_s = await drill.recovered() if end is None else 0.0
                await asyncio.sleep(began + FAULT_S - loop.time())
                ended = loop.time()
                if end is not None:
                    await end()
                    recovery_s = await drill.recovered()
                admitted = clients.between(began, ended)
                effects = _shown(clients.between(began, loop.time()), admitted, ended - began, recovery_s)
                shown.setdefault(name, []).append(effects)
            sending.cancel()
        seconds = BEFORE_S * len(shown) * len(runs)
        return {name: median_of(of) for name, of in shown.items()}, _shown(calm, calm, seconds, 0.0)


def median_of(of: Sequence[Effects]) -> Effects:
    """The medians of all runs, the sum of their errors, and the longest recovery."""
    return Effects(
        errors=sum(each.errors for each in of),
        p99_s=median(each.p99_s for each in of),
        to_limit=median(each.to_limit for each in of),
        recovery_s=max(each.recovery_s for each in of),
    )


def _shown(answers: Sequence[Answer], during: Sequence[Answer], seconds: float, recovery_s: float) -> Effects:
    return Effects(
        errors=sum(answer.status not in (200, 429) for answer in answers),
        p99_s=rank(sorted(answer.took_s for answer in answers), 0.99),
        to_limit=sum(answer.status == 200 for answer in during) / (LIMIT_PER_S * seconds),
        recovery_s=recovery_s,
    )


def faults(store: RealStore, way: SlowWay) -> dict[str, tuple[Act, Act | None]]:
    """By name: how a fault begins, and how it ends; None if it needs no end."""
    tell = partial(partial, store.tell)

    async def signal_it(number: signal.Signals) -> None:
        store.signal(number)

    async def be_late(late_s: float) -> None:
        way.late_s = late_s

    return {
        "killed": (store.kill, store.start),
        "frozen": (partial(signal_it, signal.SIGSTOP), partial(signal_it, signal.SIGCONT)),
        "200 ms slow": (partial(be_late, SLOW_S), partial(be_late, 0.0)),
        "emptied": (tell("FLUSHALL"), None),
        "full": (tell("CONFIG", "SET", "maxmemory", "1"), tell("CONFIG", "SET", "maxmemory", "0")),
        "wrong type, loads": (tell("SET", KEY, "text"), tell("DEL", KEY)),
        "wrong type, limit": (tell("SET", LIMIT_KEY, "text"), tell("DEL", LIMIT_KEY)),
        "no rights": (
            tell("ACL", "SETUSER", "default", "-@write"),
            tell("ACL", "SETUSER", "default", "+@all"),
        ),
    }


class _Drill:
    """Waits until both gateways share again."""

    def __init__(self, store: RealStore, http: httpx.AsyncClient, admins: Sequence[str]) -> None:
        self._store, self._http, self._admins = store, http, admins

    async def recovered(self) -> float:
        """Seconds until both gateways share loads and limits; inf after `MAX_RECOVERY_S`."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        while loop.time() - start < MAX_RECOVERY_S:
            if all([await self._shares(admin) for admin in self._admins]):
                return loop.time() - start
            await asyncio.sleep(POLL_S)
        return math.inf

    async def _shares(self, admin: str) -> bool:
        state = (await self._http.get(f"{admin}/admin/state")).raise_for_status().json()["store"]
        loads = await self._store.tell("HLEN", KEY)
        return (state["gateways"], state["error"], state["limit_error"], loads) == (1, "", "", 2)
