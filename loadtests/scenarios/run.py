"""Plays a scenario: every contender, one after the other, on the same requests."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from gateway.core.policy import Policy
from gateway.policy.load import load
from loadtests.children import Children
from loadtests.live.start import Broken
from loadtests.peers.install import Skipped
from loadtests.processes import raise_file_limit
from loadtests.replay.columns import Columns, read_rows
from loadtests.replay.play import FILES, Now, Plan, Player
from loadtests.replay.request import Request
from loadtests.replay.target import Length, Target
from loadtests.report.figures import report
from loadtests.report.page import page
from loadtests.report.run_file import About, read_run, write_run
from loadtests.scenarios.contender import RunningContender, happen, key_of, start
from loadtests.scenarios.file import ContenderSection, EventSection, ScenarioFile, environment, policy_path

SEED = 1
MAX_LATE_S = 0.02
STARTING = "starting"
QUICK = 0.2
"""Share of its time that a quick scenario takes."""
Report = dict[str, Any]


@dataclass(slots=True)
class Played:
    """The result of a scenario. Tests by contender and multiple of the rate, in the order in which they were run."""

    scenario: ScenarioFile
    quick: bool
    reports: dict[tuple[str, float], Report] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Contenders that are missing here, and why."""
    broken: dict[tuple[str, float], str] = field(default_factory=dict)
    """Tests that broke off, with the error."""
    interrupted: bool = False

    @property
    def trusted(self) -> bool:
        """Whether the generator was in time in every test."""
        return all(of["trusted"] for of in self.reports.values())


def play_scenario(scenario: ScenarioFile, out: Path, quick: bool, tell: Callable[[str, str], None]) -> Played:
    """Play all tests; reports of single tests go into folders of `out`. An error, or Ctrl-C, costs only the current
    test.

    `tell` is called with the current test and its progress: `STARTING` first.
    """
    raise_file_limit(FILES)
    played = Played(scenario, quick)
    part = QUICK if quick else 1.0
    sweep = scenario.sweep or [1.0]
    for contender in scenario.contenders:
        for times in sweep:
            name = contender.called if len(sweep) == 1 else f"{contender.called} {times:g}x"
            folder = out / name.replace(" ", "-")
            folder.mkdir(parents=True, exist_ok=True)
            try:
                test = ScenarioTest(scenario, contender, times, part, folder, partial(tell, name))
                played.reports[contender.called, times] = asyncio.run(test.run())
            except Skipped as why:
                played.skipped[contender.called] = str(why)
                break
            except (Broken, OSError) as why:
                played.broken[contender.called, times] = str(why) or repr(why)
            except KeyboardInterrupt:
                played.interrupted = True
                return played
    return played


def _hopeless(policy: Policy, now_s: float, under_way: Iterable[Request]) -> bool:
    """Whether no open request can still be good. If so, the test does not wait for them."""
    for of in under_way:
        slo, due_s = policy.tiers[of.arrival.tier].slo, of.arrival.at
        if (of.first_s or now_s) - due_s <= slo.ttft_bound_s and now_s - due_s <= slo.e2e_bound_s:
            return False
    return True


class ScenarioTest:
    """Play one contender at one rate."""

    def __init__(
        self,
        scenario: ScenarioFile,
        contender: ContenderSection,
        times: float,
        part: float,
        folder: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._scenario = scenario
        self.contender = contender
        self._times = times
        self._part = part
        self._folder = folder
        self._tell = tell

    async def run(self) -> Report:
        self._tell(STARTING)
        with tempfile.TemporaryDirectory(prefix="tailgate-scenario-") as files:
            async with Children(lambda name, line: None) as children:
                running = await start(self._scenario, self.contender, children, Path(files))
                policy = load(self._policy_file, environment(running.replicas))
                await self._play(running, policy, children)
        run = read_run(self._folder)
        try:
            found = report(run, read_rows(self._folder), policy)
        except ValueError as why:
            raise Broken(str(why)) from None
        (self._folder / "report.json").write_bytes(orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY))
        (self._folder / "report.html").write_text(page(found))
        return found

    @property
    def _policy_file(self) -> Path:
        return policy_path(self.contender.policy or self._scenario.policy)

    async def _play(self, running: RunningContender, policy: Policy, children: Children) -> None:
        of = self._scenario
        target = Target(running.url, keys={tier: (key_of(tier),) for tier in policy.tiers}, length=Length.HIDDEN)
        plan = Plan(
            seed=SEED,
            timeout_s=of.patience,
            grace_s=of.grace,
            retries=of.retries,
            warmup_s=of.warmup * self._part,
        )
        columns = Columns(self._folder, of.warmup * self._part)
        events = of.events if self.contender.disturbed else []
        upcoming: list[asyncio.TimerHandle] = []
        happening: list[asyncio.Task[None]] = []

        def begin(event: EventSection) -> None:
            happening.append(asyncio.create_task(happen(event, running, self._part)))

        def begins(_: float) -> None:
            later = asyncio.get_running_loop().call_later
            upcoming.extend(later(plan.lead_s + event.at * self._part, begin, event) for event in events)

        arrivals = of.arrivals(SEED, self._times, self._part)
        player = Player(
            arrivals,
            target,
            columns,
            plan,
            show=self._show,
            begins=begins,
            settled=lambda *now: _hopeless(policy, *now),
        )
        try:
            played = await player.play()
            if missed := sorted(events, key=lambda event: event.at)[len(happening) :]:
                raise Broken(
                    f"the test was over before the event at {missed[0].at * self._part:g} s: send requests for longer"
                )
            for error in await asyncio.gather(*happening, return_exceptions=True):
                if error is not None:
                    raise Broken(f"an event failed: {error if isinstance(error, Broken) else repr(error)}")
        finally:
            columns.close()
            for timer in upcoming:
                timer.cancel()
            for task in happening:
                task.cancel()
        if children.died.done():
            raise Broken(children.died.result().how_it_ended)
        write_run(self._folder, self._about(running), played, columns)

    def _show(self, now: Now) -> None:
        self._tell(f"{max(0.0, now.at_s):.0f} of {self._scenario.lasts * self._part:.0f} s, {now.under_way} under way")

    def _about(self, running: RunningContender) -> About:
        of = self._scenario
        return About(
            target=f"{self.contender.called} at {running.url}",
            traffic=f"{of.title} ({self._times:g}x)",
            seed=SEED,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            planned_s=of.lasts * self._part,
            warmup_s=of.warmup * self._part,
            max_late_s=MAX_LATE_S,
            length=Length.HIDDEN.value,
            retries=of.retries,
            policy=self._policy_file.name,
        )
