"""A caller of the controller in virtual time under constant faults: clients that leave, replicas that fail.

It relies only on the controller's contract. A cancelled attempt goes on for up to 50 ms, and may have its first token,
or its end, in that time. The caller keeps its own count, from the commands alone.
"""

from __future__ import annotations

import math
from collections import Counter
from heapq import heappop, heappush
from random import Random
from typing import Any

from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.fleet.pool import Replica
from gateway.core.policy import Policy
from gateway.core.request import Endpoint, Request
from gateway.core.results import AttemptOutcome, AttemptResult, Reason
from gateway.core.sample import Sample

TENANTS, BODIES = 5, 500
CALM_PER_S, BURST_PER_S, TURN_S = 20.0, 60.0, 10.0
MEDIAN_S, SIGMA, SLOW, FACTOR, ANSWER_S = 0.1, 0.5, 0.08, 8.0, 0.5
PROGRESS_S = 0.25
LEAVES, PATIENCE_S = 0.8, 0.5
FAULT_EVERY_S = 4.0
OVER_S = 300.0
"""Seconds after the last arrival by which everything must be over."""
EARLY = ((AttemptOutcome.UNREACHABLE, 0.02), (AttemptOutcome.CONNECT_TIMEOUT, 0.01))
ANSWERED = (
    (AttemptOutcome.BUSY, 0.02),
    (AttemptOutcome.CLOSING, 0.005),
    (AttemptOutcome.FAILED, 0.02),
    (AttemptOutcome.RESET, 0.02),
    (AttemptOutcome.REJECTED, 0.01),
)
BREAKS_OFF, HANGS, PAUSES, REPEATS = 0.03, 0.01, 0.03, 0.01
ENDS = frozenset(end.value for end in AttemptOutcome)
BROKEN = (
    AttemptOutcome.UNREACHABLE,
    AttemptOutcome.CONNECT_TIMEOUT,
    AttemptOutcome.BUSY,
    AttemptOutcome.CLOSING,
    AttemptOutcome.FAILED,
    AttemptOutcome.RESET,
    AttemptOutcome.TRUNCATED,
)


class Client:
    """Commands that concern one client."""

    __slots__ = ("commits", "cuts", "ends", "left", "refusals", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.commits = self.refusals = self.cuts = self.ends = 0
        self.left = False

    @property
    def answered_once(self) -> bool:
        """Whether the client got at most one answer, whole or broken off; and one at least, unless it left."""
        ended = self.refusals + self.cuts
        if self.commits > 1 or ended > 1 or self.cuts > self.commits:
            return False
        return self.left or self.commits + self.refusals >= 1


class Churn:
    """One run. Its results are `happened`, `wrong` and `leaked`."""

    def __init__(self, policies: tuple[Policy, ...], seed: int) -> None:
        self._policies = policies
        self._policy = policies[0]
        self._controller = Controller(self._policy, Random(f"{seed} controller"))
        self._random = Random(f"{seed} churn")
        self._now = 0.0
        self._heap: list[tuple[float, int, str, Any]] = []
        """Time, order and target of each event: attempt, request or replica."""
        self._planned = 0
        self.clients: dict[int, Client] = {}
        self._open: dict[int, tuple[int, str]] = {}
        """Request and replica of every open attempt."""
        self._written: set[int] = set()
        self._cancelled: set[int] = set()
        self._replicas: dict[int, Replica] = {}
        """All replicas that ever got a request, over all reloads."""
        self._slow: set[str] = set()
        self._silent: set[str] = set()
        self._living = 0
        self.happened: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.open_by_second: list[int] = []

    def run(self, requests: int) -> None:
        """Run this many arrivals, with random faults, until nothing is under way."""
        random, heap, arrived, next_at = self._random, self._heap, 0, 0.0
        self._plan(FAULT_EVERY_S, "fault", 0)
        while arrived < requests or self._living or self._open:
            due = heap[0][0] if heap else math.inf
            arrival_at = next_at if arrived < requests else math.inf
            wake_at = self._controller.wake_at()
            at = min(due, arrival_at, wake_at)
            if at == math.inf or at > next_at + OVER_S:
                break
            self._now = max(self._now, at)
            self._check()
            if due <= min(arrival_at, wake_at):
                _, _, what, key = heappop(heap)
                if what in ENDS:
                    self._finish(key, AttemptOutcome(what))
                elif what != "fault" or arrived < requests:
                    getattr(self, f"_{what}")(key)
            elif wake_at <= arrival_at:
                self._act(self._controller.wake(self._now))
            else:
                arrived += 1
                rate = CALM_PER_S if int(self._now / TURN_S) % 2 else BURST_PER_S
                next_at = self._now + random.expovariate(rate)
                self.arrive(arrived)
        self.wrong["answers"] += sum(not client.answered_once for client in self.clients.values())
        self.wrong["ends"] += sum(client.ends != 1 for client in self.clients.values())

    @property
    def leaked(self) -> dict[str, int]:
        """State still held when nothing is under way."""
        controller = self._controller
        pools, replicas = list(controller.state.fleet), self._replicas.values()
        held = controller.holdings()
        return {
            "requests": held.requests,
            "attempts": held.attempts + len(self._open),
            "slots": sum(abs(pool.in_flight) for pool in pools)
            + sum(abs(count) for pool in pools for count in pool.by_tier.values())
            + sum(abs(r.in_flight) + r.paused + sum(map(abs, r.by_tier.values())) for r in replicas),
            "waiting": sum(len(pool.queue) + abs(pool.queue.bytes) for pool in pools),
            "alarms": len(held.timers),
            "leases": sum(map(abs, held.tenants.values())),
            "tokens": sum(abs(r.unprefilled_tokens) + abs(r.held_tokens) + len(r.reading) for r in replicas),
        }

    # ---- clients

    def arrive(self, number: int) -> None:
        random, policy = self._random, self._policy
        tier = random.choice(list(policy.tiers.values()))
        body = random.randrange(BODIES)
        prompt_tokens = random.choice((20, 100, 100, 100, 700, 3000))
        request = Request(
            id=number,
            policy=policy,
            tier=tier,
            model=policy.models["m"],
            tenant=f"t{random.randrange(TENANTS)}",
            endpoint=Endpoint.CHAT,
            stream=random.random() < 0.8,
            prompt_bytes=4 * prompt_tokens,
            prompt_exact=prompt_tokens if random.random() < 0.5 else None,
            max_tokens=random.choice((None, 16, 400)),
            choices=1 if random.random() < 0.95 else 2,
            body_bytes=4 * prompt_tokens,
            head_at=self._now,
            body_at=self._now,
            body_hash=body if self._controller.suspects(self._now) else None,
        )
        self.clients[number] = Client(request)
        self._living += 1
        if random.random() < LEAVES:
            self._plan(random.expovariate(1.0 / PATIENCE_S), "leave", number)
        self._act(self._controller.arrive(request, self._now))

    def _leave(self, number: int) -> None:
        client = self.clients[number]
        if client.ends or client.refusals or client.cuts:
            return
        client.left = True
        self.happened["disconnects"] += 1
        why = Reason.CLIENT_STALLED if client.commits and self._random.random() < 0.2 else Reason.CLIENT_GONE
        self._act(self._controller.leave(number, self._now, why))

    # ---- attempts

    def _begin(self, attempt: int) -> None:
        """Draw the events of an attempt."""
        random, (number, replica) = self._random, self._open[attempt]
        early = self._drawn(EARLY)
        if early is not None:
            self._plan(1.0 if early is AttemptOutcome.CONNECT_TIMEOUT else 0.001, early, attempt)
            return
        self._plan(0.001, "send", attempt)
        if replica in self._silent or random.random() < HANGS:
            self.happened["hung attempts"] += 1
            return
        slow = (FACTOR if random.random() < SLOW else 1.0) * (FACTOR if replica in self._slow else 1.0)
        first_s = 0.002 + MEDIAN_S * math.exp(SIGMA * random.gauss(0.0, 1.0)) * slow
        answered = self._drawn(ANSWERED)
        if answered is not None:
            self._plan(first_s, answered, attempt)
            return
        rest_s = random.expovariate(1.0 / ANSWER_S)
        end = AttemptOutcome.TRUNCATED if random.random() < BREAKS_OFF else AttemptOutcome.COMPLETE
        self._plan(first_s + rest_s, end, attempt)
        if self.clients[number].request.stream:
            self._plan(first_s, "first", attempt)
            for step in range(1, int(rest_s / PROGRESS_S) + 1):
                self._plan(first_s + step * PROGRESS_S, "progress", attempt)
            for what, share in (("pause", PAUSES), ("repeat", REPEATS)):
                if random.random() < share:
                    self._plan(first_s + 0.9 * rest_s * random.random(), what, attempt)

    def _drawn(self, ends: tuple[tuple[AttemptOutcome, float], ...]) -> AttemptOutcome | None:
        draw = self._random.random()
        for end, share in ends:
            if (draw := draw - share) < 0.0:
                return end
        return None

    def _send(self, attempt: int) -> None:
        if attempt in self._open:
            self._written.add(attempt)
            self._act(self._controller.sent(attempt, self._now))

    def _first(self, attempt: int) -> None:
        if attempt in self._open:
            self.happened["first tokens of cancelled attempts"] += attempt in self._cancelled
            self._act(self._controller.first_token(attempt, self._now))

    def _progress(self, attempt: int) -> None:
        if attempt in self._open:
            tokens = self._controller.state.attempts[attempt].tokens + self._random.randrange(1, 20)
            self._act(self._controller.progress(attempt, tokens, self._now))

    def _pause(self, attempt: int) -> None:
        if attempt in self._open:
            self.happened["pauses"] += 1
            self._plan(self._random.random(), "resume", attempt)
            self._act(self._controller.paused(attempt, self._now))

    def _resume(self, attempt: int) -> None:
        if attempt in self._open:
            self._act(self._controller.resumed(attempt, self._now))

    def _repeat(self, attempt: int) -> None:
        if attempt in self._open:
            self._act(self._controller.repeats(attempt, self._now))

    def _finish(self, attempt: int, end: AttemptOutcome) -> None:
        """Report the end of an attempt to the controller, unless it has ended already."""
        if attempt not in self._open:
            return
        number, _ = self._open.pop(attempt)
        client = self.clients[number]
        self.happened["faults"] += end in BROKEN
        self.happened["closed although cancelled"] += attempt in self._cancelled and end is not AttemptOutcome.CANCELLED
        self._written.discard(attempt)
        self._cancelled.discard(attempt)
        prompt, output = (100, 20) if end is AttemptOutcome.COMPLETE and self._random.random() < 0.8 else (None, None)
        broke = end in (AttemptOutcome.RESET, AttemptOutcome.TRUNCATED) and not client.commits
        finish = AttemptResult(
            end,
            prompt,
            output,
            tokens_seen=self._random.randrange(30),
            retry_after_s=self._random.choice((None, 1.0)) if end is AttemptOutcome.BUSY else None,
            body_hash=number % BODIES if broke else None,
        )
        self._act(self._controller.finish(attempt, finish, self._now), closing=attempt)

    # ---- replicas and policies

    def _fault(self, _: int) -> None:
        """A random fault of a replica, or a reload of the policy."""
        random = self._random
        self._plan(random.expovariate(1.0 / FAULT_EVERY_S), "fault", 0)
        replicas = [replica.name for pool in self._policy.pools.values() for replica in pool.replicas]
        name, what = random.choice(replicas), random.choice(("dead", "slow", "silent", "drained", "reload"))
        self.happened[f"replica {what}" if what != "reload" else "reloads"] += 1
        self.happened["faults"] += what in ("dead", "slow", "silent")
        self._plan(random.uniform(2.0, 10.0), "well", name)
        if what == "dead":
            for attempt in [attempt for attempt, (_, at) in self._open.items() if at == name]:
                self._finish(
                    attempt, AttemptOutcome.TRUNCATED if attempt in self._written else AttemptOutcome.UNREACHABLE
                )
            for _ in range(3):
                self._act(self._controller.observe(name, Sample(healthy=False), self._now))
        elif what == "drained":
            self._act(self._controller.drain(name, True, self._now))
        elif what == "reload":
            self._policy = random.choice(self._policies)
            self._act(self._controller.configure(self._policy, self._now))
        else:
            (self._slow if what == "slow" else self._silent).add(name)

    def _well(self, name: str) -> None:
        self._slow.discard(name)
        self._silent.discard(name)
        self._act(self._controller.drain(name, False, self._now))
        sample = Sample(healthy=True, waiting=0, running=3, kv_fraction=0.2, context_tokens=8192)
        self._act(self._controller.observe(name, sample, self._now))

    # ---- commands

    def _plan(self, in_s: float, what: str, key: int | str) -> None:
        self._planned += 1
        heappush(self._heap, (self._now + in_s, self._planned, what, key))

    def _act(self, commands: list[Command], closing: int = 0) -> None:
        for command in commands:
            if isinstance(command, Ended):
                self._over(command)
                continue
            client = self.clients[command.request_id]
            self.wrong["answers"] += client.ends > 0
            if isinstance(command, Dispatch):
                self._open[command.attempt] = (command.request_id, command.replica)
                replica = self._controller.state.attempts[command.attempt].replica
                self._replicas[id(replica)] = replica
                self._begin(command.attempt)
            elif isinstance(command, Commit):
                client.commits += 1
                self.wrong["answers"] += command.attempt not in self._open and command.attempt != closing
            elif isinstance(command, Cancel):
                self._cancelled.add(command.attempt)
                self._plan(self._random.choice((0.0, 0.001, 0.05)), AttemptOutcome.CANCELLED, command.attempt)
            elif isinstance(command, Refuse):
                client.refusals += 1
                self.wrong["answers"] += client.left
            elif isinstance(command, Cut):
                client.cuts += 1
                self.wrong["answers"] += client.left or not client.commits

    def _over(self, command: Ended) -> None:
        record = command.record
        client = self.clients[record.request.id]
        client.ends += 1
        self._living -= 1
        self.happened[f"ended {record.outcome.value}"] += 1
        if record.hedged is not None:
            self.happened["hedges"] += 1
        elif record.attempts > 1:
            self.happened["retries"] += 1

    def _check(self) -> None:
        """Once a second: check that the controller holds exactly the open requests and attempts."""
        if int(self._now) < len(self.open_by_second):
            return
        self.open_by_second += [len(self._open)] * (int(self._now) + 1 - len(self.open_by_second))
        held = sum(replica.in_flight for replica in self._replicas.values())
        self.wrong["books"] += held != len(self._open) or len(self._controller.state.attempts) != len(self._open)
        self.wrong["books"] += len(self._controller.state.requests) != self._living
