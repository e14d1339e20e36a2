"""The textbook's fleet: servers with random times per request, under the gateway's own controller, in virtual time.

There is no engine: an answer is one token, after the drawn time. So TTFT is the time of service. With `fifo`, the wait
for the server is added. Each attempt draws anew. Papers compute such results by hand; here the code of the live gateway
produces them: every call is one of `gateway.core.controller`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from gateway.core.commands import Cancel, Command, Dispatch, Ended
from gateway.core.controller import Controller
from gateway.core.policy import AdmissionMode, AdmissionSpec, Hedge, Model, Policy, Tier
from gateway.core.pool_spec import PoolSpec, ReplicaSpec, Timeouts
from gateway.core.request import Endpoint, Request
from gateway.core.results import AttemptOutcome, AttemptResult, Record
from loadtests.quantiles import rank

FOR_EVER = Timeouts(queue_s=1e6, ttft_s=1e6, idle_s=1e6, total_s=1e6)
PROMPT_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Times:
    """Lognormal times of service (seconds), a share of which takes `factor` times as long."""

    median_s: float = 0.040
    sigma: float = 0.35
    slow: float = 0.02
    factor: float = 6.0
    shared: float = 0.0
    """Share of the slow requests whose duplicate is slow, too: then the request is slow, not the server."""

    def draw(self, random: Random) -> float:
        """Draw one time."""
        return self.of(random, random.random() < self.slow)

    def of(self, random: Random, slow: bool) -> float:
        """Draw one time, slow or not."""
        time_s = self.median_s * math.exp(self.sigma * random.gauss(0.0, 1.0))
        return time_s * self.factor if slow else time_s

    @property
    def mean_s(self) -> float:
        """The mean over all requests, slow ones included."""
        return self.median_s * math.exp(self.sigma**2 / 2) * (1.0 + self.slow * (self.factor - 1.0))

    def survival(self, t: float) -> float:
        """P(a time is longer than `t` seconds)."""

        def longer(seconds: float) -> float:
            return 0.5 * math.erfc(math.log(seconds / self.median_s) / (self.sigma * math.sqrt(2.0)))

        return 1.0 if t <= 0 else (1.0 - self.slow) * longer(t) + self.slow * longer(t / self.factor)

    def quantile(self, q: float) -> float:
        """The time that a share `q` (0-1) does not exceed."""
        return inverse(self.survival, q)


def inverse(survival: Callable[[float], float], q: float) -> float:
    """The time (seconds) at which a survival function falls to 1 - q, by bisection."""
    low, high = 1e-6, 1e3
    while high / low > 1.0 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if survival(middle) > 1.0 - q else (low, middle)
    return low


def policy_of(servers: int, slots: int, hedge: Hedge | None) -> Policy:
    """One pool, one tier, admission off, routing to the fewest requests."""
    replicas = tuple(ReplicaSpec(f"s{n}", f"http://s{n}:8000") for n in range(servers))
    pool = PoolSpec("servers", replicas, slots=slots, router="least-requests", queue_limit=10**9, queue_bytes=10**15)
    off = AdmissionSpec(AdmissionMode.OFF, exploration=0.0)
    tier = Tier("only", timeouts=FOR_EVER, admission=off, hedge=hedge)
    model = Model("m", ("servers",))
    return Policy(models={"m": model}, pools={"servers": pool}, tiers={"only": tier}, keys={}, default_tier="only")


@dataclass(slots=True)
class Run:
    """Results of a run, for the requests that arrived after the warm-up."""

    ttft_s: list[float]
    """TTFT of the requests (s), sorted."""
    duplicates: float
    """Share of requests that were sent twice."""
    won: float
    """Share of the duplicates that delivered the token."""
    busy: float
    """Share of the time in which the servers were busy; for servers without a queue, mean requests at a time."""
    in_order_s: list[float]
    """TTFT by the order of arrival."""
    threshold_s: float | None
    """The p95 of first attempts (s) that the controller had learned, as a mean over the times when it was read."""

    def quantile(self, q: float) -> float:
        """A quantile of TTFT (s)."""
        return rank(self.ttft_s, q)


class Servers:
    """One run. `fifo`: a server serves one request at a time, in order of arrival; otherwise it serves all at once."""

    def __init__(self, policy: Policy, times: Times, seed: int, fifo: bool) -> None:
        self._controller = Controller(policy, Random(f"{seed} controller"))
        self._policy = policy
        self._times = times
        self._random = Random(f"{seed} times")
        self._arrivals = Random(f"{seed} arrivals")
        self._fifo = fifo
        self._heap: list[tuple[float, int]] = []
        """(time of the end, attempt) of each attempt in service."""
        self._at: dict[int, str] = {}
        """The server of each attempt that is open."""
        self._queues: dict[str, deque[int]] = {replica.name: deque() for replica in policy.pools["servers"].replicas}
        self._request_ids: dict[int, int] = {}
        self._slow: dict[int, bool] = {}
        """Whether the first attempt of a request is slow."""
        self._began: dict[int, float] = {}
        self._worked_s = 0.0
        self._now = 0.0
        self._records: list[Record] = []
        self._thresholds: list[float] = []

    def run(self, rate: float, requests: int, warmup: int) -> Run:
        """`requests` arrivals at `rate` a second, Poisson; those before `warmup` are served and not counted."""
        controller, heap = self._controller, self._heap
        arrived, next_at, counted_from = 0, self._arrivals.expovariate(rate), 0.0
        while arrived < requests or self._at:
            done_at = heap[0][0] if heap else math.inf
            arrival_at = next_at if arrived < requests else math.inf
            wake_at = controller.wake_at()
            if done_at <= min(arrival_at, wake_at):
                self._now, attempt = heappop(heap)
                if attempt in self._began:
                    self._end(attempt)
            elif wake_at <= arrival_at:
                self._now = max(self._now, wake_at)
                self._act(controller.wake(self._now))
            else:
                self._now = arrival_at
                next_at += self._arrivals.expovariate(rate)
                arrived += 1
                if arrived == warmup:
                    counted_from, self._worked_s = self._now, 0.0
                if arrived > warmup and arrived % 1000 == 0:
                    self._read_thresholds()
                self._act(controller.arrive(self._ask(arrived), self._now))
        counted = [record for record in self._records if record.request.id > warmup]
        hedged = [record for record in counted if record.hedged is not None]
        in_order = sorted(counted, key=lambda record: record.request.id)
        in_order_s = [record.ttft_s for record in in_order if record.ttft_s is not None]
        return Run(
            sorted(in_order_s),
            len(hedged) / len(counted),
            sum(record.hedged == "won" for record in hedged) / max(1, len(hedged)),
            self._worked_s / (self._now - counted_from) / len(self._queues),
            in_order_s,
            sum(self._thresholds) / len(self._thresholds) if self._thresholds else None,
        )

    def _read_thresholds(self) -> None:
        for pool in self._controller.snapshot(self._now).hedged_pools:
            self._thresholds += [threshold.late_s for threshold in pool.thresholds if threshold.late_s is not None]

    def _ask(self, number: int) -> Request:
        policy = self._policy
        return Request(
            id=number,
            policy=policy,
            tier=policy.tiers["only"],
            model=policy.models["m"],
            tenant="t",
            endpoint=Endpoint.CHAT,
            stream=True,
            prompt_bytes=4 * PROMPT_TOKENS,
            prompt_exact=PROMPT_TOKENS,
            max_tokens=1,
            choices=1,
            body_bytes=4 * PROMPT_TOKENS,
            head_at=self._now,
            body_at=self._now,
        )

    def _act(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                self._act(self._controller.sent(command.attempt, self._now))
                self._at[command.attempt] = command.replica
                self._request_ids[command.attempt] = command.request_id
                queue = self._queues[command.replica]
                queue.append(command.attempt)
                if not self._fifo or len(queue) == 1:
                    self._begin(command.attempt)
            elif isinstance(command, Cancel):
                if command.attempt in self._at:
                    self._leave(command.attempt)
                    self._act(
                        self._controller.finish(command.attempt, AttemptResult(AttemptOutcome.CANCELLED), self._now)
                    )
            elif isinstance(command, Ended):
                self._records.append(command.record)
                self._slow.pop(command.record.request.id, None)

    def _begin(self, attempt: int) -> None:
        self._began[attempt] = self._now
        times, random, request = self._times, self._random, self._request_ids.pop(attempt)
        slow = random.random() < times.slow
        if request in self._slow:
            slow = self._slow[request] if random.random() < times.shared else slow
        else:
            self._slow[request] = slow
        heappush(self._heap, (self._now + times.of(random, slow), attempt))

    def _end(self, attempt: int) -> None:
        self._leave(attempt)
        self._act(self._controller.first_token(attempt, self._now))
        finish = AttemptResult(AttemptOutcome.COMPLETE, PROMPT_TOKENS, 1, 1, 200)
        self._act(self._controller.finish(attempt, finish, self._now))

    def _leave(self, attempt: int) -> None:
        """Remove an attempt from its server, which then serves the next in its queue."""
        queue = self._queues[self._at.pop(attempt)]
        self._request_ids.pop(attempt, None)
        began = self._began.pop(attempt, None)
        queue.remove(attempt)
        if began is not None:
            self._worked_s += self._now - began
            if self._fifo and queue:
                self._begin(queue[0])
