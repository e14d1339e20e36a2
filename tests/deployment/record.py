"""Records the series that the alerts read, from a real gateway whose replicas hang, crawl, fail or do not exist.

    python -m tests.deployment.record            # all incidents together, nine minutes
    python -m tests.deployment.record hung slow

Each incident has a gateway and replicas of its own, as processes. Its series go to tests/deployment/series, in the
notation of promtool, which tests/deployment/test_alerts.py plays through the rules.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from loadtests.children import Child, Children
from loadtests.live.start import GATEWAY_LISTENS, REPLICA_LISTENS, from_checkout, gateway, ready
from tests.deployment.files import DEPLOY, read_yaml

SERIES = Path(__file__).parent / "series"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
STEP_S = 15
"""Time between two scrapes: the default of the Prometheus operator is 30 s, that of most guides 15 s."""
BEFORE_S, DURING_S, AFTER_S = 60, 300, 180
PER_S = 4.0
"""Requests per second, of both tiers together."""
TIERS = ("premium", "standard")
NOWHERE = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")
POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools: {{main: {{slots: 16, replicas: [{replicas}]}}}}
tiers:
  premium: {{priority: 1, slo: {{ttft: {{p50: 500ms, p99: 2s}}, e2e: {{p99: 20s}}}}, timeouts: {{ttft: 10s}}}}
  standard: {{priority: 0, slo: {{ttft: {{p99: 4s}}}}, timeouts: {{ttft: 10s}}}}
defaults: {{tier: standard}}
keys: [{keys}]
"""


@dataclass(frozen=True, slots=True)
class Incident:
    """What is wrong with the first of `running` replicas after `BEFORE_S`, for `DURING_S`.

    `fault`: the body for /emulator/faults; None: SIGSTOP. `absent`: replicas of the policy that never run.
    """

    running: int
    absent: int = 0
    fault: Mapping[str, object] | None = None
    is_faulty: bool = True
    per_s: float = PER_S


INCIDENTS = {
    "hung": Incident(1),
    "slow": Incident(3, fault={"fault": "slow", "factor": 12}),
    "failing": Incident(2, fault={"fault": "status_500"}),
    "absent": Incident(1, absent=3, is_faulty=False, per_s=0.2),
    "unstarted": Incident(0, absent=2, is_faulty=False, per_s=1.0),
}


def names_in_rules() -> frozenset[str]:
    """The metrics that the alerts read."""
    rules = [rule for group in read_yaml(ALERTS)["groups"] for rule in group["rules"]]
    return frozenset(name for rule in rules for name in re.findall(r"(?<![\w:])tailgate_\w+", rule["expr"]))


class Recorded:
    """Values by series, one for each scrape; None where the series was missing."""

    def __init__(self) -> None:
        self.rows: dict[str, list[str | None]] = {}
        self.scrapes = 0

    def add(self, page: str, wanted: frozenset[str]) -> None:
        """Take the wanted series of one page of metrics."""
        for line in page.splitlines():
            found = re.match(r"(tailgate_\w+)(?:\{(.*)\})? (\S+)$", line)
            if found and found[1] in wanted:
                labels = ",".join(filter(None, ['instance="gateway"', found[2]]))
                row = self.rows.setdefault(f"{found[1]}{{{labels}}}", [])
                row += [None] * (self.scrapes - len(row))
                row.append(found[3] if found[3] == "+Inf" else f"{float(found[3]):.6g}")
        self.scrapes += 1

    def text(self, title: str) -> str:
        """The file: YAML whose values promtool reads."""
        lines = [
            f"# {title}",
            "# Made by `python -m tests.deployment.record`.",
            f"interval: {STEP_S}s",
            "input_series:",
        ]
        for name in sorted(self.rows):
            row = self.rows[name] + [None] * (self.scrapes - len(self.rows[name]))
            lines += [f"  - series: '{name}'", f"    values: {compact(row)}"]
        return "\n".join(lines) + "\n"


def compact(row: list[str | None]) -> str:
    """Values in promtool's notation: `3x4` is five times 3, `_x5` is missing five times."""
    parts = []
    for value, run in groupby(row):
        count = len(list(run))
        word = "Inf" if value == "+Inf" else value
        parts.append(f"_x{count}" if word is None else word if count == 1 else f"{word}x{count - 1}")
    return " ".join(parts)


async def record(name: str, folder: Path) -> None:
    """Play one incident, and write its series."""
    incident = INCIDENTS[name]
    async with Children(lambda child, line: print(f"{name} {child}: {line}", flush=True)) as children:
        emulators = [await _replica(children, number) for number in range(incident.running)]
        urls = [(await ready(child, children))[1] for child in emulators]
        written = ", ".join(
            f'{{name: r{number}, url: "{url}"}}' for number, url in enumerate([*urls, *NOWHERE[: incident.absent]])
        )
        policy = folder / f"{name}.yaml"
        policy.write_text(POLICY.format(replicas=written, keys=", ".join(map(_key, TIERS))))
        server = await children.start("gateway", gateway(policy), GATEWAY_LISTENS)
        api, admin = (await ready(server, children)).groups()
        recorded = Recorded()
        async with httpx.AsyncClient(trust_env=False, timeout=60.0) as client, Traffic(client, api, incident.per_s):
            await _scrape(client, admin, recorded, BEFORE_S)
            if incident.is_faulty:
                await _harm(client, emulators[0], urls[0], incident.fault)
            await _scrape(client, admin, recorded, DURING_S)
            if incident.is_faulty:
                await _mend(client, emulators[0], urls[0], incident.fault)
            await _scrape(client, admin, recorded, AFTER_S)
        about = f"{name}: {BEFORE_S} s before, {DURING_S} s of the incident, {AFTER_S} s after it."
        (SERIES / f"{name}.yaml").write_text(recorded.text(about))


def _key(tier: str) -> str:
    return f"{{sha256: {sha256(tier.encode()).hexdigest()}, tenant: {tier}, tier: {tier}}}"


async def _replica(children: Children, number: int) -> Child:
    options = ("--port", "0", "--output-median", "20", "--output-sigma", "0", "--keep-alive", "600")
    return await children.start(f"r{number}", from_checkout("loadtests.emulator", *options), REPLICA_LISTENS)


async def _harm(client: httpx.AsyncClient, child: Child, url: str, fault: Mapping[str, object] | None) -> None:
    if fault is None:
        child.signal(signal.SIGSTOP)
    else:
        (await client.post(f"{url}/emulator/faults", json=dict(fault))).raise_for_status()


async def _mend(client: httpx.AsyncClient, child: Child, url: str, fault: Mapping[str, object] | None) -> None:
    if fault is None:
        child.signal(signal.SIGCONT)
    else:
        (await client.post(f"{url}/emulator/faults", json={"fault": None})).raise_for_status()


async def _scrape(client: httpx.AsyncClient, admin: str, recorded: Recorded, time_s: int) -> None:
    wanted = names_in_rules()
    for _ in range(time_s // STEP_S):
        recorded.add((await client.get(f"{admin}/metrics")).text, wanted)
        await asyncio.sleep(STEP_S)


class Traffic:
    """A context manager: requests at a steady rate, each tier in turn."""

    def __init__(self, client: httpx.AsyncClient, api: str, per_s: float) -> None:
        self._send = partial(_ask, client, f"{api}/v1/chat/completions")
        self._per_s = per_s
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> None:
        self._sending = asyncio.create_task(self._run())

    async def __aexit__(self, *_: object) -> None:
        self._sending.cancel()
        for task in self._open:
            task.cancel()
        await asyncio.gather(self._sending, *self._open, return_exceptions=True)

    async def _run(self) -> None:
        number = 0
        while True:
            task = asyncio.create_task(self._send(TIERS[number % len(TIERS)], number))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            number += 1
            await asyncio.sleep(1.0 / self._per_s)


async def _ask(client: httpx.AsyncClient, url: str, tier: str, number: int) -> None:
    body = {
        "model": "emulated",
        "stream": True,
        "max_tokens": 20,
        "messages": [{"role": "user", "content": f"{number}: why is the sea salt?"}],
    }
    with suppress(httpx.HTTPError):
        await client.post(url, json=body, headers={"authorization": f"Bearer {tier}"})


async def main() -> None:
    """Record the incidents that the command line names, together."""
    command = argparse.ArgumentParser(description="Record the series of real incidents.")
    command.add_argument("incidents", nargs="*", default=[*INCIDENTS], metavar="INCIDENT", help=", ".join(INCIDENTS))
    SERIES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        async with asyncio.TaskGroup() as group:
            for name in command.parse_args().incidents:
                group.create_task(record(name, Path(folder)))


if __name__ == "__main__":
    asyncio.run(main())
