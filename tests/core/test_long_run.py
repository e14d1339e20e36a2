"""A minute with hedges, ejections, drains, reloads and cuts at once; then the same from its journal.

Reads (metrics, `explain`, the log) happen in the first run only: they must not change decisions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest

from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.journal.recorder import Recorded, Told
from gateway.core.policy import Hedge, Model, OnTotal, Policy, Retry
from gateway.core.pool_spec import Ejection, Health, Timeouts
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.sample import Sample
from gateway.core.sessions import Session, key_of
from gateway.core.snapshot import ReplicaState
from tests.effort import examples

from .made import a_request, policy, pool, tier

HEALTH = Health(failures=3, open_s=3.0, slow_start_s=10.0, ejection=Ejection(time_s=10.0, probe_s=2.0))
TIMEOUTS = Timeouts(queue_s=5.0, ttft_s=20.0, idle_s=20.0, total_s=40.0)
HEDGE = Hedge(quantile=0.9, budget=0.1)
FAST = tier("fast", 0, timeouts=TIMEOUTS, hedge=HEDGE, retry=Retry(0.1), on_total=OnTotal.CUT)
BATCH = tier("batch", 5, timeouts=TIMEOUTS, retry=Retry(0.1))
SESSIONS = [Session(f"talk {n}", key_of(f"talk {n}")) for n in range(9)]
REPLICAS = ("r1", "r2", "r3", "r4", "r5", "r6")


def rules(generation: int, *replicas: str, second: bool = True) -> Policy:
    pools = [pool("p", *replicas, slots=6, queue_limit=50, health=HEALTH, strict_sessions=generation % 2 > 0)]
    pools += [pool("q", "s1", "s2", "s3", slots=4, queue_limit=20, health=HEALTH)] if second else []
    tiers = [FAST if generation % 3 else replace(FAST, hedge=None), replace(BATCH, fallback="small" if second else "")]
    models = [Model("m", tuple(each.name for each in pools)), Model("small", (pools[-1].name,))]
    return policy(*pools, *tiers, models=models, generation=generation)


class Fleet:
    """Engines that answer, are slow, hang, refuse or break off, and an operator who drains and reloads."""

    def __init__(self, seed: int, told: list[Told]) -> None:
        self.random = Random(seed)
        self.controller = Recorded(rules(1, *REPLICAS), Random(seed), told.append)
        self.looks = Random(seed)
        """A separate source of random numbers, so that reads do not change the other draws."""
        self.now = 0.0
        self.due: list[tuple[float, int, str, tuple[Any, ...]]] = []
        self.open: dict[int, str] = {}
        self.asks = 0
        self.events = 0
        self.seen: Counter[str] = Counter()
        self.answers: dict[int, str] = {}
        """The commands for each request, a letter each: d(ispatch), c(ommit), r(efuse), x (cut), e(nded)."""
        self.drained: set[str] = set()

    def later(self, after_s: float, what: str, *args: Any) -> None:
        self.events += 1
        heappush(self.due, (self.now + after_s, self.events, what, args))

    def run(self, until: float) -> None:
        self.later(0.0, "arrival")
        self.later(1.0, "somebody")
        while self.due:
            at = min(self.due[0][0], self.controller.wake_at())
            if at > until:
                break
            self.now = max(self.now, at)
            if self.controller.wake_at() <= self.due[0][0]:
                self.hear(self.controller.wake(self.now))
            else:
                _, _, what, args = heappop(self.due)
                getattr(self, what)(*args)
            if self.looks.random() < 0.05:
                self.look()
        self.hear(self.controller.shut(self.now))
        for attempt in list(self.open):
            self.over(attempt, AttemptResult(AttemptOutcome.CANCELLED))

    def look(self) -> None:
        """The reads of metrics, `explain` and the log; what a pool counts is the sum over its replicas."""
        self.controller.snapshot(self.now)
        self.controller.states()
        self.controller.quarantined(self.now)
        self.controller.suspects(self.now)
        self.controller.explain(a_request(10**9, self.controller.policy, self.now, tier="fast"), self.now)
        for each in self.controller.state.fleet:
            replicas = each.replicas.values()
            assert len([*each.queue]) == len(each.queue)
            assert each.places == sum(replica.places for replica in replicas)
            assert each.spare == sum(max(0, replica.slots - replica.in_flight) for replica in replicas)

    # ---- what happens by itself

    def arrival(self) -> None:
        self.later(self.random.expovariate(12.0), "arrival")
        self.asks += 1
        draw = self.random.random
        suspects = self.controller.suspects(self.now)
        made = a_request(
            self.asks,
            self.controller.policy,
            self.now,
            tier="fast" if draw() < 0.7 else "batch",
            tenant="acme" if draw() < 0.5 else "globex",
            stream=draw() < 0.9,
            prompt=int(50 * math.exp(3 * draw())),
            body_hash=int(draw() * 50) if suspects else None,
            session=SESSIONS[int(draw() * 9)] if draw() < 0.3 else None,
        )
        self.hear(self.controller.arrive(made, self.now))
        if draw() < 0.01:
            self.later(draw() * 2.0, "leaves", self.asks)

    def leaves(self, number: int) -> None:
        self.hear(self.controller.leave(number, self.now))

    def somebody(self) -> None:
        self.later(self.random.expovariate(0.3), "somebody")
        draw = self.random.random()
        name = self.random.choice(REPLICAS)
        if draw < 0.3:
            on = name not in self.drained
            (self.drained.add if on else self.drained.discard)(name)
            self.hear(self.controller.drain(name, on, self.now))
        elif draw < 0.5:
            left = self.random.sample(REPLICAS, self.random.randint(3, 6))
            generation = self.controller.policy.generation + 1
            self.hear(self.controller.configure(rules(generation, *left, second=self.random.random() < 0.7), self.now))
        else:
            sample = Sample(healthy=self.random.random() < 0.4)
            for _ in range(3):
                self.hear(self.controller.observe(name, sample, self.now))

    # ---- engines

    def speed(self, replica: str) -> float:
        """Factor on the usual time of each replica, for a while each, in turn; inf: it hangs."""
        turn = int(self.now / 20.0)
        return 4.0 if replica == f"r{turn % 4 + 2}" else math.inf if replica == f"r{turn % 7}" else 1.0

    def sent(self, attempt: int, replica: str) -> None:
        if attempt not in self.open:
            return
        self.controller.sent(attempt, self.now)
        draw = self.random.random()
        took_s = 0.2 * self.speed(replica) * self.random.lognormvariate(0.0, 0.7)
        if draw < 0.04:
            end = self.random.choice(
                (
                    AttemptOutcome.BUSY,
                    AttemptOutcome.FAILED,
                    AttemptOutcome.RESET,
                    AttemptOutcome.REJECTED,
                    AttemptOutcome.CLOSING,
                )
            )
            broke = end is AttemptOutcome.RESET
            self.later(
                0.01, "over", attempt, AttemptResult(end, body_hash=self.random.randrange(50) if broke else None)
            )
        elif took_s < math.inf:
            self.later(took_s, "begins", attempt, took_s)

    def begins(self, attempt: int, took_s: float) -> None:
        if attempt in self.open:
            self.hear(self.controller.first_token(attempt, self.now))
            self.later(took_s, "goes_on", attempt, 1 if self.random.random() < 0.99 else -10_000)

    def goes_on(self, attempt: int, tokens: int) -> None:
        if attempt not in self.open:
            return
        draw = self.random.random()
        self.hear(self.controller.progress(attempt, abs(tokens), self.now))
        if draw < 0.04:
            self.hear(self.controller.repeats(attempt, self.now))
        elif draw < 0.05:
            self.hear(self.controller.paused(attempt, self.now))
            self.later(0.5, "resumes", attempt)
        if 0 < tokens < 40:
            self.later(0.1, "goes_on", attempt, tokens + 10)
        elif tokens > 0:
            self.later(
                0.0, "over", attempt, AttemptResult(AttemptOutcome.COMPLETE, prompt_tokens=100, output_tokens=tokens)
            )
        else:
            self.later(1.0, "goes_on", attempt, tokens - 1)  # until it is cut

    def resumes(self, attempt: int) -> None:
        if attempt in self.open:
            self.hear(self.controller.resumed(attempt, self.now))

    def over(self, attempt: int, finish: AttemptResult) -> None:
        if self.open.pop(attempt, None) is not None:
            self.hear(self.controller.finish(attempt, finish, self.now))

    # ---- answers

    def hear(self, commands: list[Command]) -> None:
        for command in commands:
            self.note(command)
            match command:
                case Dispatch(_, attempt, replica):
                    states = self.states()
                    assert states[replica] is not ReplicaState.DRAINED
                    self.seen["beside one that is ejected"] += ReplicaState.EJECTED in states.values()
                    self.open[attempt] = replica
                    self.later(0.001, "sent", attempt, replica)
                case Cancel(_, attempt):
                    self.later(0.0, "over", attempt, AttemptResult(AttemptOutcome.CANCELLED, tokens_seen=3))
                case Ended(record):
                    self.seen[record.outcome.value] += 1
                    self.seen["hedged"] += record.hedged is not None
                    self.seen["fallback"] += record.request.fallback_of != ""
                case Commit() | Refuse() | Cut():
                    self.seen[type(command).__name__] += 1

    def note(self, command: Command) -> None:
        number = command.record.request.id if isinstance(command, Ended) else command.request_id
        letter = {Dispatch: "d", Commit: "c", Refuse: "r", Cut: "x", Ended: "e"}.get(type(command), "")
        self.answers[number] = self.answers.get(number, "") + letter

    def states(self) -> dict[str, ReplicaState]:
        return {name: state for _, name, state, _ in self.controller.states()}


def minute(seed: int) -> tuple[Fleet, list[Told]]:
    told: list[Told] = []
    fleet = Fleet(seed, told)
    fleet.run(60.0)
    return fleet, told


ANSWERED = re.compile("d*(r|c[rx]?)?e")
"""At most one answer, which a refusal or a cut may end. After it nothing is sent, and the end is told once."""


@pytest.mark.parametrize("seed", range(examples(16)))
def test_controller_gives_the_same_answers_to_the_same_calls(seed: int) -> None:
    fleet, told = minute(seed)
    again = Controller(rules(1, *REPLICAS), Random(seed))
    for name, args, answer in told:
        assert getattr(again, name)(*args) == answer
    for controller in (fleet.controller, again):
        assert not controller.state.requests
        assert not controller.state.attempts
        assert controller.holdings().is_empty
    assert len(fleet.answers) == fleet.asks
    assert [said for said in fleet.answers.values() if not ANSWERED.fullmatch(said)] == []


def test_random_minutes_contain_every_kind_of_end() -> None:
    """Otherwise the test above would prove nothing."""
    missing = {"ok", "fallback", "hedged", "beside one that is ejected", "cut", "timeout", "refused", "error"}
    for seed in range(100):
        missing -= {what for what, times in minute(seed)[0].seen.items() if times}
        if not missing:
            return
    raise AssertionError(f"never seen: {missing}")
