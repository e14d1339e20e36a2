"""A plain load balancer, the base of the baselines. It sends every request at once, and decides nothing else.

It uses the gateway's routers, and applies tenants' limits and caps of `max_tokens`. It skips replicas that are known to
be down, and tries another replica if a connection is refused. It ends requests that exceed their tier's total timeout.
It does not hold requests, order them, or predict. An `AdmissionGate` in front of it may hold them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gateway.core.commands import Cancel, Command, Commit, Dispatch, Ended, Refuse
from gateway.core.deadlines import Timers
from gateway.core.fleet.health.evidence import checked, seen_of
from gateway.core.fleet.routing import Router
from gateway.core.policy import Policy
from gateway.core.pool_spec import PoolSpec
from gateway.core.queueing.limits import Tenants
from gateway.core.request import Random, Request
from gateway.core.request_state import RequestState
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason
from gateway.core.sample import Sample
from gateway.sim.baselines.server import Server

NEVER_SENT = (AttemptOutcome.UNREACHABLE, AttemptOutcome.CONNECT_TIMEOUT)


class _Job:
    """A request under way, which is at one replica at a time."""

    __slots__ = ("attempt", "committed", "server", "state", "tried", "unread")

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self.attempt = 0
        self.server: Server | None = None
        self.tried: list[Server] = []
        self.unread = False
        self.committed = False


class Balancer:
    """A decider that sends every request at once. `router`: makes the router of a pool."""

    def __init__(self, policy: Policy, router: Callable[[], Router], random: Random) -> None:
        self._random = random
        self._routers = {name: router() for name in policy.pools}
        self._servers = {
            name: [Server(replica.name, rank, pool) for rank, replica in enumerate(pool.replicas)]
            for name, pool in policy.pools.items()
        }
        self._tenants = Tenants()
        self._alarms = Timers()
        self._jobs: dict[int, _Job] = {}
        self._attempts: dict[int, _Job] = {}
        self._next_attempt = 0

    def least(self, pool: str, now: float) -> int | None:
        """The smallest number of requests in flight at a replica of a pool; None if no replica is up."""
        return min((server.in_flight for server in self._servers[pool] if server.up(now)), default=None)

    def arrive(self, request: Request, now: float) -> list[Command]:
        """Send the request, or refuse one that no pool can serve."""
        state = RequestState(request)
        state.prompt_tokens = request.prompt_exact if request.prompt_exact is not None else request.prompt_bytes // 4
        state.max_tokens = request.tier.caps.granted(request.max_tokens)
        job = self._jobs[request.id] = _Job(state)
        out: list[Command] = []
        if not request.policy.route(request.model, request.tier):
            return self._refuse(job, Outcome.INVALID, Reason.FORBIDDEN_MODEL, now)
        if not self._pools(request, state.prompt_tokens):
            return self._refuse(job, Outcome.INVALID, Reason.CONTEXT_LENGTH, now)
        use = self._tenants.of(request.tenant, request.tier, now)
        reserved = state.prompt_tokens + state.max_tokens
        exceeded = use.check(reserved, now)
        if exceeded is not None:
            return self._refuse(job, Outcome.QUOTA, exceeded.why, now)
        use.take(reserved, now)
        state.use, state.reserved_tokens = use, reserved
        self._alarms.set(request.id, request.head_at + request.tier.timeouts.total_s)
        self._send(job, Reason.NO_REPLICAS, out, now)
        return out

    def sent(self, attempt_id: int, now: float) -> list[Command]:
        """Record that the attempt was sent."""
        self._attempts[attempt_id].state.reached = True
        return []

    def first_token(self, attempt_id: int, now: float) -> list[Command]:
        """Commit to the attempt, because it has its first token."""
        job = self._attempts[attempt_id]
        self._read(job)
        if job.state.outcome is None:
            job.state.first_at = now
        return self._commit(job) if job.state.outcome is None else []

    def progress(self, attempt_id: int, tokens: int, now: float) -> list[Command]:
        """Ignored."""
        return []

    def finish(self, attempt_id: int, result: AttemptResult, now: float) -> list[Command]:
        """End the request of an attempt that is over, or retry it if there was no connection."""
        job = self._attempts.pop(attempt_id)
        state, server, out = job.state, job.server, list[Command]()
        assert server is not None
        self._read(job)
        server.in_flight -= 1
        server.health.saw(seen_of(result), server.pool.health, now, result.end.value)
        job.server = None
        state.output_tokens = result.output_tokens or result.tokens_seen
        if state.outcome is not None:
            return [self._over(job, now)]
        match result.end:
            case AttemptOutcome.COMPLETE:
                out += self._commit(job)
                state.decide(Outcome.OK, None, now)
            case AttemptOutcome.REJECTED:
                out += self._commit(job)
                state.decide(Outcome.INVALID, Reason.UPSTREAM_REJECTED, now)
            case end if end in NEVER_SENT:
                self._send(job, Reason.UPSTREAM_UNREACHABLE, out, now)
                return out
            case _:
                return self._refuse(job, Outcome.ERROR, Reason.UPSTREAM_ERROR, now)
        out.append(self._over(job, now))
        return out

    def leave(self, request_id: int, now: float) -> list[Command]:
        """End the request of a client that has left."""
        job = self._jobs.get(request_id)
        return [] if job is None else self._end(job, Outcome.ABANDONED, Reason.CLIENT_GONE, now)

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        """Record the health of a replica. Other facts of a sample are ignored."""
        for servers in self._servers.values():
            for server in servers:
                if server.name == replica_name:
                    server.context_tokens = sample.context_tokens or server.context_tokens
                    seen = checked(sample, -math.inf)
                    if seen is not None:
                        server.health.saw(seen, server.pool.health, now, seen.value)
        return []

    def wake(self, now: float) -> list[Command]:
        """End requests whose total timeout has passed."""
        out: list[Command] = []
        for request_id in self._alarms.due(now):
            out += self._end(self._jobs[request_id], Outcome.TIMEOUT, Reason.TOTAL_TIMEOUT, now)
        return out

    def wake_at(self) -> float:
        """Time of the next total timeout."""
        return self._alarms.next_at()

    # ---- sending and ending

    def _pools(self, request: Request, prompt_tokens: int) -> list[PoolSpec]:
        """Pools of the route that take the prompt."""
        route = request.policy.route(request.model, request.tier)
        return [pool for pool in route if pool.takes(prompt_tokens)]

    def _send(self, job: _Job, why: Reason, out: list[Command], now: float) -> None:
        """Send the request to an untried replica that is up, in the first pool that has one. If no pool has such a
        replica, refuse the request.
        """
        state, request = job.state, job.state.request
        for pool in self._pools(request, state.prompt_tokens):
            up = [s for s in self._servers[pool.name] if s not in job.tried and s.up(now)]
            if up:
                router = self._routers[pool.name]
                server = router.pick(up, self._random.random(), request.affinity.prefix)
                router.sent(server)
                break
        else:
            out += self._refuse(job, Outcome.ERROR if job.tried else Outcome.REFUSED, why, now)
            return
        self._next_attempt += 1
        job.attempt, job.server, job.unread = self._next_attempt, server, True
        job.tried.append(server)
        self._attempts[job.attempt] = job
        server.in_flight += 1
        server.unprefilled_tokens += state.prompt_tokens
        state.attempts += 1
        if state.dispatched_at is None:
            state.dispatched_at = now
        if request.max_tokens is None and server.context_tokens is not None:
            state.max_tokens = min(state.max_tokens, max(1, server.context_tokens - state.prompt_tokens))
        out.append(Dispatch(request.id, job.attempt, server.name, state.max_tokens))

    def _commit(self, job: _Job) -> list[Command]:
        """Commit to the attempt's answer, if that was not done before."""
        committed, job.committed = job.committed, True
        return [] if committed else [Commit(job.state.request.id, job.attempt)]

    def _read(self, job: _Job) -> None:
        if job.unread and job.server is not None:
            job.unread = False
            job.server.unprefilled_tokens -= job.state.prompt_tokens

    def _end(self, job: _Job, outcome: Outcome, why: Reason, now: float) -> list[Command]:
        """End a request that may have an attempt at a replica."""
        if job.state.outcome is not None:
            return []
        job.state.decide(outcome, why, now)
        out: list[Command] = []
        if outcome is not Outcome.ABANDONED:
            out.append(Refuse(job.state.request.id, why))
        out.append(Cancel(job.state.request.id, job.attempt) if job.server is not None else self._over(job, now))
        return out

    def _refuse(self, job: _Job, outcome: Outcome, why: Reason, now: float) -> list[Command]:
        """End a request that has no attempt at a replica."""
        job.state.decide(outcome, why, now)
        return [Refuse(job.state.request.id, why), self._over(job, now)]

    def _over(self, job: _Job, now: float) -> Ended:
        state = job.state
        del self._jobs[state.request.id]
        self._alarms.clear(state.request.id)
        if state.use is not None:
            state.settle(now)
        return Ended(state.record())
