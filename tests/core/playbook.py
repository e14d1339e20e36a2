"""Playbooks of a controller: events with their times, and the exact commands that it returns.

    play(policy(pool("p", "r1"))).at(0.0).arrives("a").expect(dispatch("r1"))

Requests have names. Expected commands concern the request named last unless `of` names another. Time passes in `at` and
`after` as it does for a live caller: `wake` is called whenever the controller asked for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.results import AttemptOutcome, AttemptResult, HedgeResult, Outcome, Reason, Record
from gateway.core.sample import GatewayLoad, LimitLease, QuotaWindow, Sample
from gateway.core.snapshot import LimitView, PoolView, ReplicaView

from .made import a_request


class Chance:
    """A source of scripted random numbers; the last one repeats."""

    def __init__(self, *draws: float) -> None:
        self._draws = list(draws)

    def random(self) -> float:
        return self._draws.pop(0) if len(self._draws) > 1 else self._draws[0]


@dataclass(frozen=True)
class Expected:
    """One command, by the name of its request; details that are not given are not compared."""

    kind: type[Command]
    of: str | None
    details: Mapping[str, Any] = field(default_factory=dict)


def dispatch(replica: str, of: str | None = None, **details: object) -> Expected:
    """The request is sent to `replica`."""
    return Expected(Dispatch, of, {"replica": replica, **details})


def commit(of: str | None = None, **details: object) -> Expected:
    """The client gets this attempt's answer; the latest attempt unless `attempt` is given (1, 2, ...)."""
    return Expected(Commit, of, details)


def cancel(of: str | None = None, **details: object) -> Expected:
    """An attempt must be closed; the latest unless `attempt` is given (1, 2, ...)."""
    return Expected(Cancel, of, details)


def refuse(why: Reason, of: str | None = None, **details: object) -> Expected:
    """The client gets an error."""
    return Expected(Refuse, of, {"why": why, **details})


def cut(why: Reason, of: str | None = None, **details: object) -> Expected:
    """The client's answer ends properly, marked as incomplete."""
    return Expected(Cut, of, {"why": why, **details})


def ended(outcome: Outcome, of: str | None = None, **record: object) -> Expected:
    """The request is over; `record` names facts of its record."""
    return Expected(Ended, of, {"outcome": outcome, **record})


def play(policy: Policy, *chances: float, alive: bool = True) -> Story:
    """A story that begins at time 0. `chances` are the random draws, 0.0 unless given: ties go to the first.

    `alive`: whether the replicas of the policy were seen alive before. Otherwise they may become absent.
    """
    story = Story(Controller(policy, Chance(*chances) if chances else Chance(0.0)))
    for pool in story.controller.state.fleet:
        for replica in pool.replicas.values():
            replica.was_alive = alive
    return story


class Story:
    """A controller, the time, and the names of its requests."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.now = 0.0
        self.records: dict[str, Record] = {}
        self._subject = ""
        self.ids: dict[str, int] = {}
        """Request ids by name."""
        self.names: dict[int, str] = {}
        self.attempts: dict[str, list[int]] = {}
        """Attempt ids by the name of their request."""
        self.commands: list[Command] = []
        """Commands since the last `expect` or `whatever`."""

    # ---- time

    def at(self, time_s: float) -> Story:
        """Time passes until `time_s`; timers up to that time, inclusive, wake the controller."""
        assert time_s >= self.now
        while (at := self.controller.wake_at()) <= time_s:
            self._hear(self.controller.wake(max(at, self.now)))
            assert self.controller.wake_at() > at, "an alarm that rang is still due"
        self.now = time_s
        return self

    def after(self, duration_s: float) -> Story:
        """Time passes."""
        return self.at(self.now + duration_s)

    # ---- what happens

    def arrives(self, name: str, **how: Any) -> Story:
        """A request arrives. `how` is as for `made.a_request`."""
        assert name not in self.ids
        self._subject = name
        self.ids[name] = len(self.ids) + 1
        self.names[self.ids[name]] = name
        self.attempts[name] = []
        made = a_request(self.ids[name], how.pop("policy", self.controller.policy), self.now, **how)
        return self._hear(self.controller.arrive(made, self.now))

    def sent(self, name: str, attempt: int = 0) -> Story:
        """The request has been written to its replica."""
        return self._hear(self.controller.sent(self._attempt(name, attempt), self.now))

    def first_token(self, name: str, attempt: int = 0) -> Story:
        """The first token has arrived."""
        return self._hear(self.controller.first_token(self._attempt(name, attempt), self.now))

    def progress(self, name: str, tokens: int, attempt: int = 0) -> Story:
        """More has come."""
        return self._hear(self.controller.progress(self._attempt(name, attempt), tokens, self.now))

    def repeats(self, name: str, attempt: int = 0) -> Story:
        """The answer repeats itself."""
        return self._hear(self.controller.repeats(self._attempt(name, attempt), self.now))

    def pauses(self, name: str, attempt: int = 0) -> Story:
        """The client is too slow, so the answer is not read for now."""
        return self._hear(self.controller.paused(self._attempt(name, attempt), self.now))

    def resumes(self, name: str, attempt: int = 0) -> Story:
        """The answer is read again."""
        return self._hear(self.controller.resumed(self._attempt(name, attempt), self.now))

    def finishes(
        self, name: str, end: AttemptOutcome = AttemptOutcome.COMPLETE, attempt: int = 0, **facts: Any
    ) -> Story:
        """An attempt is closed; `facts` are those of `AttemptResult`."""
        return self._hear(self.controller.finish(self._attempt(name, attempt), AttemptResult(end, **facts), self.now))

    def cancelled(self, name: str, attempt: int = 0) -> Story:
        """The caller has closed an attempt, as commanded."""
        return self.finishes(name, AttemptOutcome.CANCELLED, attempt)

    def leaves(self, name: str, why: Reason = Reason.CLIENT_GONE) -> Story:
        """The client has left."""
        self._subject = name
        return self._hear(self.controller.leave(self.ids[name], self.now, why))

    def fails(self, name: str, *, times: int = 3) -> Story:
        """A replica fails this many health checks."""
        return self.observes(name, Sample(healthy=False), times=times)

    def recovers(self, name: str) -> Story:
        """A replica passes a health check."""
        return self.observes(name, Sample(healthy=True))

    def observes(self, name: str, sample: Sample, *, times: int = 1) -> Story:
        """A replica was scraped."""
        for _ in range(times):
            self._hear(self.controller.observe(name, sample, self.now))
        return self

    def hears(self, source: str, load: GatewayLoad) -> Story:
        """Another gateway tells its load."""
        return self._hear(self.controller.told(source, load, self.now))

    def shares(self, gateways: int, *leases: LimitLease) -> Story:
        """So many gateways share the limits, and this one has these parts."""
        return self._hear(self.controller.share_limits(gateways, leases, self.now))

    def opens(self, day: str, ends_at: float) -> Story:
        """A day of UTC begins."""
        return self._hear(self.controller.open_windows((QuotaWindow("day", day, ends_at),), self.now))

    def drains(self, name: str, *, on: bool = True) -> Story:
        """An operator drains a replica, or ends the drain."""
        return self._hear(self.controller.drain(name, on, self.now))

    def configured(self, policy: Policy) -> Story:
        """There is a new policy."""
        return self._hear(self.controller.configure(policy, self.now))

    def shuts(self) -> Story:
        """The drain deadline of the process is over."""
        return self._hear(self.controller.shut(self.now))

    def wakes(self) -> Story:
        """The caller wakes the controller, perhaps too early."""
        return self._hear(self.controller.wake(self.now))

    def hedges(self, name: str, replica: str) -> Story:
        """Send a duplicate, against all rules."""
        self._subject = name
        core = self.controller.state
        target = core.fleet.replica(replica)
        assert target is not None
        state = core.requests[self.ids[name]]
        state.hedged = HedgeResult.FAILED
        commands = core.call.begin(self.now)
        self.controller.scheduler.dispatch(state, target, hedge=True)
        return self._hear(commands)

    def served(self, name: str, **facts: Any) -> Story:
        """A request is sent and finishes at once; commands are ignored."""
        return self.sent(name).first_token(name).finishes(name, **facts)

    # ---- what is expected

    def expect(self, *expected: Expected) -> Story:
        """Check that these are all commands since the last check, in this order."""
        said, self.commands = self.commands, []
        assert [_kind(c) for c in said] == [e.kind.__name__ for e in expected], said
        for command, wanted in zip(said, expected, strict=True):
            self._compare(command, wanted)
        return self

    def whatever(self) -> Story:
        """Forget the commands so far."""
        self.commands = []
        return self

    def expect_alarm(self, at: float) -> Story:
        """Check the time at which the controller wants to be woken."""
        assert self.controller.wake_at() == pytest.approx(at)
        return self

    # ---- what can be seen

    def pool(self, name: str) -> PoolView:
        """The pool in the snapshot."""
        return next(p for p in self.controller.snapshot(self.now).pools if p.name == name)

    def replica(self, name: str) -> ReplicaView:
        """The replica in the snapshot."""
        pools = self.controller.snapshot(self.now).pools
        return next(r for p in pools for r in p.replicas if r.name == name)

    def limits(self, tenant: str = "acme", tier: str = "std") -> LimitView:
        """Tokens that a tenant has left."""
        tenants = self.controller.snapshot(self.now).tenants
        return next(t for t in tenants if (t.tenant, t.tier) == (tenant, tier))

    def retry_after_s(self) -> float:
        """Retry-After of the only refusal since the last `expect`."""
        (refusal,) = (c for c in self.commands if isinstance(c, Refuse))
        assert refusal.retry_after_s is not None
        return refusal.retry_after_s

    # ---- inside

    def _hear(self, commands: list[Command]) -> Story:
        for command in commands:
            if isinstance(command, Dispatch):
                self.attempts[self.names[command.request_id]].append(command.attempt)
            elif isinstance(command, Ended):
                self.records[self.names[command.record.request.id]] = command.record
        self.commands += commands
        return self

    def _attempt(self, name: str, number: int) -> int:
        self._subject = name
        return self.attempts[name][number - 1]

    def _compare(self, command: Command, wanted: Expected) -> None:
        name = wanted.of or self._subject
        facts = command.record if isinstance(command, Ended) else command
        request_id = command.record.request.id if isinstance(command, Ended) else command.request_id
        assert request_id == self.ids[name], f"{command} is not of {name}"
        details = dict(wanted.details)
        if isinstance(command, Commit | Cancel):
            assert command.attempt == self.attempts[name][details.pop("attempt", 0) - 1], command
        for key, value in details.items():
            assert getattr(facts, key) == _close(value), f"{key} of {command}"


def _kind(command: Command) -> str:
    return type(command).__name__


def _close(value: object) -> object:
    return pytest.approx(value) if isinstance(value, float) and math.isfinite(value) else value
