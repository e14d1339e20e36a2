"""Mixed clients and every fault, for minutes: each request gets one answer, nothing is left over, and nothing grows.

Gateway, clients and emulated replicas run in one process, in cycles. In a cycle clients ask, leave and send rubbish,
replicas fail in every way that the emulator knows, and an operator reloads, drains and undrains. Then it gets quiet,
and every count must be back to zero. Descriptors, tasks, heap objects and memory are compared over the quiet moments.

`make soak`, or `python -m loadtests.bench.soak --minutes 10 --seed 7`. The exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import uvloop

from gateway.app import Gateway
from gateway.observe.requests.ring import Found
from gateway.policy.load import load
from gateway.settings import Settings
from loadtests.bench.held import Quiet, grown, held
from loadtests.emulator import Emulator
from loadtests.emulator.faults import HOW, FaultKind
from loadtests.emulator.replica import EmulatedReplica

REPLICAS = 4
CLIENTS = 24
CYCLE_S = 12.0
KEEP_ALIVE_S = 2.0
"""Replicas close connections that are idle for this long."""
QUIET_S = 30.0
"""A cycle must get quiet within this time."""
EQUAL_S = 5.0
"""Within this time, the counts of gateway and replica must agree at least once. They differ while bytes are on the way.
"""
MAX_TOKENS = 40
MIN_CYCLES = 3
LEFT_EARLY, BROKE_OFF = "left before the answer", "broke off the request"
MARKER = "kill-the-replica"
POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools:
  main:
    slots: 6
    queue: {{limit: 16}}
    health: {{interval: 200ms}}
    replicas: [{replicas}]
tiers:
  urgent:
    priority: 0
    slo: {{ttft: {{p99: {bound}}}}}
    hedge: {{budget: 0.2}}
    timeouts: {{queue: 2s, ttft: 2s, idle: 1s, total: 8s}}
  patient: {{priority: 1, timeouts: {{queue: 1s, ttft: 2s, idle: 1s, total: 8s}}}}
defaults: {{tier: urgent}}
"""


@dataclass
class Soaked:
    """Result of a run. `wrong`: everything that was not as it should be."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    comparisons: int = 0
    """How often the counts of a replica and of the gateway were found equal."""
    quiet: list[Quiet] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Soak:
    """One run."""

    def __init__(self, gateway: Gateway, emulator: Emulator, path: Path, seed: int) -> None:
        self.result = Soaked()
        self._gateway = gateway
        self._emulator = emulator
        self._path = path
        self._random = Random(seed)
        self._sent = 0
        self._asked: dict[str, str] = {}
        """How each request of this cycle went, by its id. Kept for longer, it would grow beside the gateway."""
        self._recorded: Counter[str] = Counter()
        """Records of this cycle's requests, by their ids."""
        self._harmed_at: dict[int, float] = {}
        ring = gateway.records.ring
        assert ring is not None
        ring.readers.append(self._record)

    def _record(self, one: Found) -> None:
        self._recorded[one.request_id] += 1

    async def run(self, seconds: float) -> Soaked:
        """Run cycles for about `seconds`, and judge them."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or len(self.result.quiet) < MIN_CYCLES:
            await self._cycle()
            await self._get_quiet()
        self.result.wrong += list(grown(self.result.quiet))
        return self.result

    async def _cycle(self) -> None:
        until = time.monotonic() + CYCLE_S
        limits = httpx.Limits(max_connections=2 * CLIENTS, max_keepalive_connections=CLIENTS)
        async with (
            httpx.AsyncClient(base_url=self._gateway.url, timeout=20.0, limits=limits) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(CLIENTS):
                group.create_task(self._ask_again(client, until))
            group.create_task(self._harm(until))
            group.create_task(self._operate(until))
            for number in range(REPLICAS):
                group.create_task(self._compare(number, until))

    # ---- clients

    async def _ask_again(self, client: httpx.AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            request_id = f"soak-{self._sent}"
            self._sent += 1
            self._asked[request_id] = "under way"
            what = self._random.choices(
                (self._ask, self._leave, self._break_off, self._send_rubbish), weights=(12, 4, 1, 1)
            )[0]
            try:
                outcome = await what(client, request_id)
            except (httpx.HTTPError, OSError) as error:
                self._is_wrong(f"{request_id}: no whole answer: {error!r}")
                outcome = "no whole answer"
            self._asked[request_id] = outcome
            self.result.outcomes[outcome] += 1
            await asyncio.sleep(self._random.expovariate(20.0))

    def _body(self, *, stream: bool) -> dict[str, object]:
        words = "word " * self._random.randrange(1, 200)
        poison = MARKER if self._random.random() < 0.005 else ""
        return {
            "model": "emulated",
            "messages": [{"role": "user", "content": f"{self._random.random()} {words} {poison}"}],
            "max_tokens": self._random.randrange(1, MAX_TOKENS),
            "stream": stream,
        }

    async def _ask(self, client: httpx.AsyncClient, request_id: str) -> str:
        """Read the whole answer, which must end in one of the ways that the API knows."""
        stream = self._random.random() < 0.7
        headers = {"x-request-id": request_id}
        answer = await client.post("/v1/chat/completions", json=self._body(stream=stream), headers=headers)
        if answer.status_code != 200:
            if "error" not in answer.json():
                self._is_wrong(f"{request_id}: {answer.status_code} without an error")
            return str(answer.status_code)
        if stream:
            ends = (answer.text.count("data: [DONE]"), answer.text.count('data: {"error"'))
            # A replica may close after the finish reason. Such an answer is whole, and the gateway passes its end on
            # unchanged, without `[DONE]`.
            is_finished = '"finish_reason":"' in answer.text
            if ends not in ((1, 0), (0, 1)) and not (ends == (0, 0) and is_finished):
                self._is_wrong(f"{request_id}: a stream with {ends[0]} ends and {ends[1]} errors: {answer.text[-300:]}")
            if not ends[0]:
                return "broke off with an error" if ends[1] else "streamed, without [DONE]"
            return "streamed"
        return "whole" if is_json(answer.content) else "whole, but cut by the replica"

    async def _leave(self, _shared: httpx.AsyncClient, request_id: str) -> str:
        """Leave before the answer, or in its middle.

        The client is its own, and is closed outside of the timeout: httpx forgets connections that a timeout cancels,
        open and unread (encode/httpcore#1093).
        """
        headers = {"x-request-id": request_id}
        async with httpx.AsyncClient(base_url=self._gateway.url, timeout=20.0, verify=False, trust_env=False) as client:
            try:
                async with asyncio.timeout(self._random.uniform(0.0, 0.4) + 0.05):
                    body = self._body(stream=True)
                    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                        async for _piece in answer.aiter_raw():
                            if self._random.random() < 0.2:
                                break
            except TimeoutError:
                return LEFT_EARLY
        return "left in the answer"

    async def _break_off(self, _: httpx.AsyncClient, request_id: str) -> str:
        """Leave in the middle of the request."""
        host = httpx.URL(self._gateway.url)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host.host}:{host.port}\r\nx-request-id: {request_id}\r\n"
        writer = (await asyncio.open_connection(host.host, host.port))[1]
        writer.write(f'{head}content-length: 999\r\ncontent-type: application/json\r\n\r\n{{"model":'.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        return BROKE_OFF

    async def _send_rubbish(self, client: httpx.AsyncClient, request_id: str) -> str:
        rubbish = self._random.choice((b"{", b"[]", b'{"model": "none", "messages": []}', b"\xff" * 100))
        headers = {"x-request-id": request_id, "content-type": "application/json"}
        answer = await client.post("/v1/chat/completions", content=rubbish, headers=headers)
        if not 400 <= answer.status_code < 500:
            self._is_wrong(f"{request_id}: {answer.status_code} to {rubbish!r}")
        return str(answer.status_code)

    # ---- replicas and the operator

    async def _harm(self, until: float) -> None:
        kinds = list(FaultKind)
        while time.monotonic() < until:
            number, kind = self._random.randrange(REPLICAS), self._random.choice(kinds)
            lasts_s = self._random.uniform(0.3, 1.5)
            details: dict[str, object] = {"for_s": lasts_s, "after_events": self._random.randrange(4)}
            if kind in HOW:
                details["how"] = self._random.choice([how for how in HOW[kind] if how] or [""])
            self._emulator.replicas[number].fault(kind, **details)
            self._harmed_at[number] = time.monotonic() + lasts_s
            self.result.faults[kind.value] += 1
            await asyncio.sleep(self._random.uniform(0.2, 0.8))

    async def _operate(self, until: float) -> None:
        while time.monotonic() < until:
            name, on = f"r{self._random.randrange(REPLICAS)}", self._random.random() < 0.5
            self._gateway.driver.drain(name, on)
            await asyncio.sleep(self._random.uniform(0.3, 1.0))
            text = policy_text(self._emulator, self._random.choice(("1s", "2s", "3s")))
            await asyncio.to_thread(self._write_policy, text)
            done = await self._gateway.reloads.reload()
            if not done.ok:
                self._is_wrong(f"reload: {done.message}")

    def _write_policy(self, text: str) -> None:
        """Replace the file in one step: the gateway watches it."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._path)

    async def _compare(self, number: int, until: float) -> None:
        """Every second: the gateway counts as many requests at a replica as it has sockets with a request."""
        replica = self._emulator.replicas[number]
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            deadline = time.monotonic() + EQUAL_S
            counts = self._counts(number)
            while counts[0] != counts[1] and time.monotonic() < deadline and not self._is_harmed(number, replica):
                await asyncio.sleep(0.003)
                counts = self._counts(number)
            if self._is_harmed(number, replica):
                continue
            self.result.comparisons += counts[0] == counts[1]
            if counts[0] != counts[1]:
                self._is_wrong(f"r{number}: the gateway counts {counts[0]} requests, the replica {counts[1]}")

    def _counts(self, number: int) -> tuple[int, int]:
        holdings = self._gateway.controller.holdings()
        return holdings.slots.get(f"r{number}", 0), busy(self._emulator.replicas[number])

    def _is_harmed(self, number: int, replica: EmulatedReplica) -> bool:
        """Whether it has a fault, or had one lately: a replica that hangs does not see that the gateway hung up."""
        return replica.active is not None or time.monotonic() - self._harmed_at.get(number, 0.0) < 1.0

    # ---- quiet moments

    def _unrecorded(self) -> list[str]:
        """Requests that need a record and have none. A client that left at once may have sent no whole request."""
        gone = (BROKE_OFF, LEFT_EARLY)
        return [name for name, how in self._asked.items() if not self._recorded[name] and how not in gone]

    async def _get_quiet(self) -> None:
        for number, replica in enumerate(self._emulator.replicas):
            replica.fault(None)
            self._gateway.driver.drain(f"r{number}", False)
        deadline = time.monotonic() + QUIET_S
        while left := self._left_over():
            if time.monotonic() > deadline:
                self._is_wrong(f"left over after {QUIET_S:.0f} s: {', '.join(left)}")
                break
            await asyncio.sleep(0.1)
        if twice := [name for name, count in self._recorded.items() if count > 1]:
            self._is_wrong(f"{len(twice)} requests with several records, such as {twice[0]}")
        if unknown := self._recorded.keys() - self._asked:
            self._is_wrong(f"{len(unknown)} records of requests that nobody sent, such as {next(iter(unknown))}")
        self._asked.clear()
        self._recorded.clear()
        # A connection that the gateway forgot is not among these: the replica closed it.
        kept_alive = sum(len(replica.connections) for replica in self._emulator.replicas)
        self.result.quiet.append(held(self._sent, kept_alive))

    def _left_over(self) -> list[str]:
        holdings = self._gateway.controller.holdings()
        connections = self._gateway.limits.connections
        at_replicas = sum(busy(replica) for replica in self._emulator.replicas)
        missing = self._unrecorded()
        parts = [f"{holdings}" if not holdings.is_empty else ""]
        parts += [f"{connections} connections of clients" if connections else ""]
        parts += [f"{at_replicas} requests at replicas" if at_replicas else ""]
        parts += [f"{len(missing)} requests without a record, such as {missing[0]}" if missing else ""]
        return [part for part in parts if part]

    def _is_wrong(self, what: str) -> None:
        self.result.wrong.append(what)


def is_json(body: bytes) -> bool:
    """Whether a body is JSON. A replica may send another one, which is passed on."""
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def busy(replica: EmulatedReplica) -> int:
    """Sockets of a replica with a generation under way."""
    exchanges = [connection.busy for connection in replica.connections]
    return sum(each is not None and each.received.path.startswith("/v1/chat") for each in exchanges)


def policy_text(emulator: Emulator, bound: str) -> str:
    """A policy in front of the replicas. `bound`: the objective, by which reloads differ."""
    replicas = ", ".join(f'{{name: r{number}, url: "{url}"}}' for number, url in enumerate(emulator.urls))
    return POLICY.format(replicas=replicas, bound=bound)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for policy, access log and ledger."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


async def soak(seconds: float, seed: int) -> Soaked:
    """Run for `seconds`, and at least `MIN_CYCLES` cycles."""
    with folder() as place:
        path = place / "policy.yaml"
        async with Emulator(replicas=REPLICAS, time_scale=4.0, seed=seed, keep_alive_s=KEEP_ALIVE_S) as emulator:
            await asyncio.to_thread(path.write_text, policy_text(emulator, "2s"))
            settings = Settings(
                port=0,
                admin_port=0,
                drain_deadline_s=0.0,
                records=500,
                usage=place / "usage.db",
                access_log=place / "access.jsonl",
            )
            async with Gateway(settings, load(path), path) as gateway:
                return await Soak(gateway, emulator, path, seed).run(seconds)


def main() -> int:
    """Run, print the result as JSON lines, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--hours", type=float, default=0.0, help="instead of --minutes")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    seconds = 3600.0 * given.hours or 60.0 * given.minutes
    print(f"{seconds / 60.0:g} minutes with seed {given.seed}", file=sys.stderr)
    result = uvloop.run(soak(seconds, given.seed))
    for one in result.quiet:
        print(json.dumps({name: getattr(one, name) for name in Quiet.__dataclass_fields__}))
    told = {"outcomes": result.outcomes, "faults": result.faults, "comparisons": result.comparisons}
    print(json.dumps({**told, "wrong": result.wrong[:50]}, indent=1))
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
