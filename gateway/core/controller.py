"""The one state machine: every decision about every request.

Rules

1. A request (`RequestState`) is waiting, running, or over. It is over when it has an outcome and no open attempt; then,
   and only then, `Ended` is returned for it, once.
2. An attempt is opened by `Dispatch` and closed by exactly one `finish`. It holds a slot of its replica from the
   one to the other, whatever happens to the request in between. `Cancel` asks the caller to close it; the slot is
   free when `finish` says so.
3. Before `Commit` the client has seen nothing, so another attempt may still be made. After it the only thing that
   can go wrong visibly is `Refuse`, which the caller turns into an error event.
4. At most one answer: one `Commit` or one `Refuse`, or a `Commit` and then a `Refuse` or a `Cut`, which ends a
   answer whose tokens can be seen as one that is incomplete.
5. Each freed slot, and each prompt read, is offered to those who wait before the call returns: most urgent tier first,
   but for floors. Whose turn comes too late for its objective is refused then, and never sent.
6. Deadlines: `queue` from body complete while waiting; `total` from head received, always; `ttft` from sent until
   the first content token, where it can be seen; `idle` from the last progress after that, except while `paused`.

    arrive ──> refuse | wait | run
    wait   ──> run (a slot) | refuse (its turn or its deadline comes too late, evicted) | over (left)
    run    ──> first token ──> commit;  finish ──> over | run again elsewhere (before commit);  deadline ──> refuse

The object opens no socket, reads no clock and draws no randomness of its own: `now` (seconds of one monotonic
clock) and the random source come from the caller, and the answer is a list of addressed commands. It is never
re-entered: the caller carries commands out after the call has returned.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from gateway.core.admission.accounting import Accounting
from gateway.core.admission.admission import Admission, Verdict
from gateway.core.admission.deadlines import next_deadline, slo_deadline
from gateway.core.admission.explanation import PlacementExplanation, explain
from gateway.core.admission.limits import Left
from gateway.core.admission.placement import Placement, Unplaceable
from gateway.core.admission.usage import believed
from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.fleet.fleet import DEFAULT_RETRY_AFTER_S, Fleet
from gateway.core.fleet.odd_answers import is_odd
from gateway.core.fleet.outlier_score import SWEEP_S, EjectionReason
from gateway.core.fleet.pool import Pool
from gateway.core.fleet.quarantine import News, Quarantine, doubt_s
from gateway.core.fleet.replica import Replica
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.forecast.prompt_length import PromptEstimator
from gateway.core.policy import OnTotal, Policy
from gateway.core.redundancy.hedging import Hedges
from gateway.core.redundancy.retries import OWN_REFUSALS, Retries, is_retried, rest_s
from gateway.core.redundancy.retry_budget import RetryBudget
from gateway.core.request import AttemptOutcome, AttemptResult, Outcome, Random, Reason, Request, Sample
from gateway.core.request_state import Attempt, RequestState, held_by_pool
from gateway.core.snapshot import ReplicaState, Snapshot
from gateway.core.timers import Timers

MAX_RETRY_AFTER_S: Final = 60.0
SPARE: Final = 0.2
"""Share of a pool's slots that is free where nobody needs the place of an answer that goes on and on."""
RESCUE_FACTOR: Final = 2.0
"""So many times its expected TTFT is a request left with a replica that is silent."""
BREAKERS: Final = -1  # the alarm of all replicas, for open breakers and for looks at all; requests have keys above zero
ANSWERS: Final = (
    AttemptOutcome.COMPLETE,
    AttemptOutcome.REJECTED,
    AttemptOutcome.BUSY,
    AttemptOutcome.CLOSING,
    AttemptOutcome.FAILED,
    AttemptOutcome.UNREADABLE,
)  # signs of life, of whatever kind

# How a request that no further attempt can save is answered, by how its last attempt ended.
FAILURES: Final[dict[AttemptOutcome, Reason]] = {
    AttemptOutcome.BUSY: Reason.UPSTREAM_BUSY,
    AttemptOutcome.CLOSING: Reason.UPSTREAM_ERROR,
    AttemptOutcome.FAILED: Reason.UPSTREAM_ERROR,
    AttemptOutcome.UNREACHABLE: Reason.UPSTREAM_UNREACHABLE,
    AttemptOutcome.CONNECT_TIMEOUT: Reason.CONNECT_TIMEOUT,
    AttemptOutcome.RESET: Reason.UPSTREAM_ERROR,
    AttemptOutcome.TRUNCATED: Reason.UPSTREAM_TRUNCATED,
    AttemptOutcome.UNREADABLE: Reason.UPSTREAM_UNREADABLE,
    AttemptOutcome.CANCELLED: Reason.UPSTREAM_UNREACHABLE,  # by us: its replica is down
}


class Controller:
    """All decisions about one gateway's requests. `share` (0-1] of every tenant limit is this process's own."""

    def __init__(self, policy: Policy, random: Random, share: float = 1.0) -> None:
        self._random = random
        self._alarms = Timers()
        self._live: dict[int, RequestState] = {}
        self._attempts: dict[int, Attempt] = {}
        self._fleet = Fleet(policy)
        self._quarantine = Quarantine()
        self._next_attempt = 0
        self.prompts = PromptEstimator()
        self.forecaster = Forecaster()
        self._admission = Admission(policy, self._fleet, self.forecaster, random)
        self._books = Accounting(share, self.prompts, self.forecaster, self._admission)
        self._places = Placement(self._fleet, self.prompts)
        self._extra = RetryBudget()
        self._retries = Retries(self._fleet, self._extra, random)
        self._hedges = Hedges(policy, self._admission, self._quarantine, self._extra, random)
        self.policy = policy
        self.decided: list[Command] = []
        """The answer to the latest call; of one that raised, as far as it had come."""
        self._disbelieved: dict[tuple[str, str], int] = {}
        """Usages that cannot be true, by pool and replica, since the last call of `disbelieved`."""
        self.woken = 0
        """The request whose deadline was acted on last."""
        self._due: deque[int] = deque()
        """Requests whose alarms have rung and were not acted on yet: empty between calls, unless one has raised."""

    # ---- what happens to requests

    def arrive(self, ask: Request, now: float) -> list[Command]:
        """A request is complete and wants a replica."""
        live = RequestState(ask)
        self._live[ask.id] = live
        out = self._begin()
        if ask.body_hash is not None and self._quarantine.refuses(ask.body_hash, now):
            self._refuse(live, Outcome.INVALID, Reason.QUARANTINED, out, now)
            return out
        pool = self._place(live, out, now)
        if pool is None or not self._reserve(live, out, now):
            return out
        pool.demand.arrived(live.prompt_likely * ask.batch)
        self._enter(live, pool, out, now)
        return out

    def sent(self, attempt_id: int, now: float) -> list[Command]:
        """The whole request of this attempt was handed to a connection to its replica."""
        attempt = self._attempts[attempt_id]
        live = attempt.live
        again = attempt.sent_at is not None  # its first connection was closed as it was used
        attempt.sent_at = attempt.last_at = now
        live.reached = True
        if live.outcome is None and live.ask.visible:
            self._arm(live)
            if self._hedges.on and not again:
                self._hedges.sent(attempt, now)
        return []

    def first_token(self, attempt_id: int, now: float) -> list[Command]:
        """The first content, reasoning or tool-call token of a streamed answer, or more than can be held back."""
        attempt = self._attempts[attempt_id]
        live = attempt.live
        out = self._begin()
        pool = attempt.replica.pool
        saturated = pool.saturated
        attempt.replica.pulse.heard(now)
        if attempt.first_at is None:
            attempt.first_at = attempt.last_at = now
            pool.read(attempt)
            if attempt.replica.refusals:
                pool.accepted(attempt.replica)
            self.forecaster.first_token(attempt, now)
            if self._hedges.on and live.ask.visible:
                self._hedges.first_token(attempt, now)
        if live.outcome is None and not attempt.cancelled and live.committed in (None, attempt):
            if live.ask.stream and live.first_at is None:
                live.first_at = now
                self._books.first_token(live, now)
            if live.committed is None:
                self._commit(attempt, out)
        if live.outcome is None:
            self._arm(live)
        if saturated:
            self._offer(pool, saturated, out, now)
        return out

    def full(self, attempt_id: int, now: float) -> list[Command]:
        """More came before the first token than can be held back: it is shown, and teaches no TTFT."""
        attempt = self._attempts[attempt_id]
        live = attempt.live
        out = self._begin()
        attempt.replica.pulse.heard(now)
        if live.committed is None and live.outcome is None and not attempt.cancelled:
            self._commit(attempt, out)
            self._arm(live)
        return out

    def progress(self, attempt_id: int, tokens: int, now: float) -> list[Command]:
        """`tokens` so far, the latest at `now`. Called at most every `deadlines.PROGRESS_EVERY_S` per attempt."""
        out = self._begin()
        attempt = self._attempts[attempt_id]
        attempt.replica.pool.progressed(attempt, tokens)
        attempt.replica.pulse.heard(now)
        self.forecaster.progress(attempt, tokens, now)
        attempt.last_at = now
        if attempt.live.ask.tier.caps.watch:
            self._watch(attempt, tokens, out, now)
        return out

    def repeats(self, attempt_id: int, now: float) -> list[Command]:
        """What this attempt says has begun to repeat itself without end."""
        live = self._attempts[attempt_id].live
        out = self._begin()
        if live.can_be_cut and live.committed is self._attempts[attempt_id]:
            self._cut(live, Reason.REPETITION, out, now)
        return out

    def paused(self, attempt_id: int, now: float) -> list[Command]:
        """The client does not keep up and this attempt is not read: its silence is not the replica's."""
        out = self._begin()
        attempt = self._attempts[attempt_id]
        if not attempt.paused:
            attempt.paused = True
            attempt.replica.pause(True, now)
        return out

    def resumed(self, attempt_id: int, now: float) -> list[Command]:
        """This attempt is read again."""
        out = self._begin()
        attempt = self._attempts[attempt_id]
        if attempt.paused:
            attempt.paused = False
            attempt.replica.pause(False, now)
        attempt.last_at = now
        if attempt.live.outcome is None:
            self._arm(attempt.live)
        return out

    def finish(self, attempt_id: int, finish: AttemptResult, now: float) -> list[Command]:
        """The attempt is closed: its connection is idle again or gone."""
        told, finish = finish, believed(self._attempts[attempt_id], finish)
        attempt = self._attempts.pop(attempt_id)
        live, replica = attempt.live, attempt.replica
        pool = replica.pool
        if finish is not told:
            where = pool.spec.name, replica.spec.name
            self._disbelieved[where] = self._disbelieved.get(where, 0) + 1
        live.open.remove(attempt)
        saturated, full = pool.saturated, pool.headroom <= 0.0
        if finish.end in ANSWERS:
            replica.pulse.heard(now)
        pool.free(attempt, finish.end, now)
        odd = is_odd(finish)
        if odd or finish.end is AttemptOutcome.FAILED:
            pool.impute(attempt, self.forecaster.costs(pool).stay_s, now)
        if odd or finish.end is AttemptOutcome.COMPLETE:
            pool.answered(replica, odd)
        self.forecaster.closed(attempt, finish, now)
        if not replica.in_flight and replica.spec.name not in pool.replicas:
            self.forecaster.keep(self.policy, self._attempts.values())
        pool.drain.ended(full, now)
        if self._hedges.on and live.ask.visible:
            self._hedges.closed(attempt, now)
        out = self._begin()
        moved = self._fleet.ended(replica, finish.end, now)
        if finish.body_hash is not None:
            self._broke(live, replica, finish.body_hash, out, now)
        if moved:
            self._breaker_moved(replica, out, now)
        if finish.end is AttemptOutcome.COMPLETE and replica.refusals:
            pool.accepted(replica)
        elif finish.end is AttemptOutcome.BUSY:
            replica.refusals += 1
            until = now + rest_s(replica.refusals, finish.retry_after_s)
            pool.rest(replica, until)
            self._look_by(until)
        self._books.attempted(live, attempt, finish)
        if live.outcome is None:
            self._conclude(live, attempt, finish, out, now)
        self._settle(live, out, now)
        self._offer(pool, saturated, out, now)
        return out

    def leave(self, ask_id: int, now: float, why: Reason = Reason.CLIENT_GONE) -> list[Command]:
        """The client is gone, or stalled for too long; nothing can be said to it any more."""
        live = self._live.get(ask_id)
        out = self._begin()
        if live is None:
            return out
        self._abandon(live, Outcome.ABANDONED, why, out, now)
        return out

    def shut(self, now: float) -> list[Command]:
        """The time to drain is over: end everything that is still under way."""
        out = self._begin()
        for live in list(self._live.values()):
            self._abandon(live, Outcome.REFUSED, Reason.SHUTTING_DOWN, out, now)
        return out

    def fail(self, ask_id: int, now: float) -> list[Command]:
        """A bug: something raised while it worked on this request, which ends with an error, whatever its state is.

        A client that has been answered hears nothing of the `Refuse`.
        """
        live = self._live.get(ask_id)
        out = self._begin()
        if live is None:
            return out
        self._unqueue(live)
        live.decide(Outcome.ERROR, Reason.INTERNAL, now)
        out.append(Refuse(ask_id, Reason.INTERNAL))
        self._cancel(live, out)
        self._settle(live, out, now)
        if live.pool is not None and live.pool.room:
            self._pump(live.pool, out, now)  # the call that raised may have freed a slot, and not got so far
        return out

    # ---- what happens to replicas and to the policy

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        """A health check, a scrape or a model list of a replica was answered, or failed."""
        out = self._begin()
        replica = self._fleet.replica(replica_name)
        if replica is None:
            return out
        pool = replica.pool
        if self._fleet.observe(replica, sample, now):
            self._breaker_moved(replica, out, now)
        if sample.running is not None:
            self.forecaster.observed(replica, now)
        if pool.demand.is_due(now):
            pool.demand.tick(self.forecaster.costs(pool), pool.serving, pool.slots, now)
        pool.tune(replica, self._admission.prefill_limit(pool), now)
        if pool.room:
            self._pump(pool, out, now)
        if sample.healthy is False and replica.breaker.state is ReplicaState.DOWN:
            self._give_up(replica, out)
        return out

    def drain(self, replica_name: str, on: bool, now: float) -> list[Command]:
        """Send a replica nothing new, or let it serve again. What is under way there goes on."""
        out = self._begin()
        replica = self._fleet.replica(replica_name)
        if replica is not None and replica.drained is not on:
            self._fleet.drain(replica, on, now)
            self._breaker_moved(replica, out, now)
            self._pump(replica.pool, out, now)
        return out

    def configure(self, policy: Policy, now: float) -> list[Command]:
        """Take on a policy. What is learned stays; requests under way keep the policy they arrived under.

        Those that wait for a pool that is gone go to another one of their model.
        """
        self.policy = policy
        gone = self._fleet.configure(policy, now)
        self._admission.configure(policy)
        self._hedges.configure(policy)
        self.forecaster.keep(policy, self._attempts.values())
        self._books.configure(policy.tiers, now)
        out = self._begin()
        self._cool(out, now)
        for live in [live for pool in gone for live in pool.room]:
            if self._has_expired(live, out, now):
                continue
            self._unqueue(live)
            other = self._place(live, out, now)
            if other is not None:
                self._enter(live, other, out, now)
        return out

    # ---- time

    def wake_at(self) -> float:
        """When `wake` wants to be called next; inf if never."""
        if self._due:
            return -math.inf
        return min(self._alarms.next_at(), self._hedges.next_at()) if self._hedges.on else self._alarms.next_at()

    def wake(self, now: float) -> list[Command]:
        """Act on every deadline that has passed."""
        out = self._begin()
        self._due.extend(self._alarms.due(now))
        while self._due:
            key = self.woken = self._due.popleft()
            if key == BREAKERS:
                self._look_by(now + SWEEP_S)  # should looking raise, it is done again
                self._cool(out, now)
                continue
            live = self._live.get(key)
            if live is None:
                continue  # refused just now, when its turn came with a breaker whose time was up
            at, why = next_deadline(live)
            if at > now:
                self._alarms.set(key, at)
                self._taken_for_read(live, out, now)
            elif why is Reason.TOTAL_TIMEOUT and live.ask.tier.on_total is OnTotal.CUT and live.can_be_cut:
                self._cut(live, why, out, now)
            else:
                self._expire(live, why, out, now)
        for key in self._hedges.due(now) if self._hedges.on else ():
            self.woken = key
            live = self._live.get(key)
            backup = None if live is None else self._hedges.backup(live, now)
            if live is not None and backup is not None:
                self._dispatch(live, backup, out, now, hedge=True)
        return out

    def _begin(self) -> list[Command]:
        """The answer to a call. A caller that catches what the call raises finds it in `decided`."""
        self.decided = []
        return self.decided

    # ---- reading

    def knows(self, ask_id: int) -> bool:
        """Whether this request has arrived and is not over."""
        return ask_id in self._live

    def is_open(self, attempt_id: int) -> bool:
        """Whether this attempt has not finished: it holds a slot."""
        return attempt_id in self._attempts

    def left(self, tenant: str, tier: str, now: float) -> Left:
        """What the tenant has left of its requests and tokens a minute."""
        return self._books.left(tenant, tier, now)

    def suspects(self, now: float) -> bool:
        """Whether any request is remembered for what it may have done to a replica: asks then need a `body_hash`."""
        return not self._quarantine.is_empty(now)

    def quarantined(self, now: float) -> list[News]:
        """What is to be told, once, of requests in quarantine."""
        return self._quarantine.news(now)

    def disbelieved(self) -> dict[tuple[str, str], int]:
        """Usages that cannot be true, counted by pool and replica since the last call."""
        found, self._disbelieved = self._disbelieved, {}
        return found

    def alive(self) -> bool:
        """Whether any pool has a replica that may be sent to."""
        return self._fleet.alive

    def states(self) -> list[tuple[str, str, ReplicaState, str]]:
        """Pool, name and state of every replica, and why it is ejected; cheap, for those who look often."""
        return [
            (pool.spec.name, name, r.state, r.pulse.why if r.state is ReplicaState.EJECTED else "")
            for pool in self._fleet
            for name, r in pool.replicas.items()
        ]

    def held(self, now: float) -> dict[str, tuple[int, float]]:
        """How many each pool has, and for how many seconds together; cheap, for those who look often."""
        held = held_by_pool(self._live.values(), now)
        return {pool.spec.name: held.get(pool.spec.name, (0, 0.0)) for pool in self._fleet}

    def snapshot(self, now: float) -> Snapshot:
        """A copy of everything, for people and gauges."""
        held = self.held(now)
        return Snapshot(
            generation=self.policy.generation,
            pools=tuple(pool.view(now, *held[pool.spec.name]) for pool in self._fleet),
            tenants=self._books.views(now),
            tiers=self._admission.views(self.policy),
            forecast=self.forecaster.view(now),
            hedged_pools=self._hedges.pool_views(now),
            hedged_tiers=self._hedges.tier_views(),
            at=now,
        )

    def explain(self, ask: Request, now: float) -> PlacementExplanation | Unplaceable:
        """What would become of a request that arrived now; nothing does, and nothing is changed."""
        live = RequestState(ask)
        found = self._places.find(live, now)
        if not isinstance(found, Pool):
            return found
        live.cap()
        live.move(found)
        return explain(self._admission, live, found, now)

    # ---- arriving

    def _place(self, live: RequestState, out: list[Command], now: float) -> Pool | None:
        """The pool that will serve the request; None, refused, if there is none."""
        found = self._places.find(live, now)
        if isinstance(found, Pool):
            return found
        wait_s = None if found.retry_after_s is None else self._jittered(found.retry_after_s)
        self._refuse(live, found.outcome, found.why, out, now, wait_s, found.detail)
        return None

    def _reserve(self, live: RequestState, out: list[Command], now: float) -> bool:
        """Take this request out of its tenant's limits; False, refused, if it does not fit them."""
        live.cap()
        exceeded = self._books.reserve(live, now)
        if exceeded is None:
            return True
        detail = ""
        if exceeded.wait_s == math.inf:
            detail = f"this request reserves {live.most_tokens} tokens, more than the limit of a whole minute"
        self._refuse(live, Outcome.QUOTA, exceeded.why, out, now, exceeded.wait_s, detail)
        return False

    def _enter(self, live: RequestState, pool: Pool, out: list[Command], now: float) -> None:
        """Have `pool` serve the request, now or later."""
        ask = live.ask
        live.move(pool)
        live.deadline = slo_deadline(live)
        if self._has_expired(live, out, now):
            return
        if pool.imputes:
            pool.settle_imputed(now)
        decision = self._admission.arrives(live, pool, now)
        if decision.verdict is Verdict.SHED:
            self.forecaster.dropped(live)
            wait_s = self._drains_in_s(pool, live)
            self._refuse(live, Outcome.REFUSED, decision.why, out, now, wait_s, decision.detail)
            return
        if decision.replica is not None and decision.replica.pool is not pool:
            pool = decision.replica.pool
            live.move(pool)
        pool.room.band(ask.tier).admitted(now)
        if decision.replica is not None:
            self.forecaster.watch(live, now)
            if pool.full:
                self._exceed(live, pool, out, now)
            self._dispatch(live, decision.replica, out, now)
            return
        for victim in decision.victims:
            self._refuse(victim, Outcome.REFUSED, Reason.EVICTED, out, now, self._drains_in_s(pool, victim))
        self.forecaster.watch(live, now)
        live.waiting = True
        pool.pressed_at = now
        pool.room.push(live)
        self._arm(live)

    def _exceed(self, live: RequestState, pool: Pool, out: list[Command], now: float) -> None:
        """A newcomer goes beyond what is learned of `pool`, since its tier is not enforced.

        It overtakes nobody that is as urgent: for each such newcomer one of those who wait goes as well. Else a tier in
        shadow would keep the slots taken, and an enforced one beside it would wait in vain.
        """
        pool.pressed_at = now
        for other in pool.room.heads(now) if pool.room else ():
            if other.ask.tier.priority <= live.ask.tier.priority:
                replica = pool.pick(other.ask.tier, None, self._random.random(), by_max=True)
                if replica is not None:
                    self._serve(other, replica, out, now)
                    return

    # ---- running

    def _dispatch(
        self, live: RequestState, replica: Replica, out: list[Command], now: float, hedge: bool = False
    ) -> None:
        if replica.pool.canaries and not live.attempts:
            replica = self._canary(live, replica, now)
        self._next_attempt += 1
        attempt = Attempt(self._next_attempt, live, replica, now, hedge)
        self._attempts[attempt.id] = attempt
        live.open.append(attempt)
        live.attempts += 1
        live.replica = replica
        pool = replica.pool
        pool.take(attempt)
        if pool.in_flight == 1 and pool.spec.health.ejection is not None:
            self._look_by(now + SWEEP_S)
        if live.dispatched_at is None:
            live.dispatched_at = now
            pool.room.served(live.ask.tier, live.prompt_tokens + self._books.dispatched(live, now))
            self._extra.deposit(live.ask.tier)
            self._hedges.dispatched(live)
            context = pool.context_tokens
            if context is not None and live.ask.max_tokens is None:
                # A default of ours must not make the engine refuse a prompt that it would have served.
                live.max_tokens = min(live.max_tokens, max(1, context - live.prompt_likely))
        self.forecaster.opened(attempt, now)
        self._arm(live)
        if not live.ask.visible and not replica.open and attempt.facts is not None:
            # It shows no first token: who waits until prompts are read is served when this one should be.
            self._alarms.set(live.ask.id, min(self._alarms.at(live.ask.id), now + attempt.facts.ttft_s))
        max_tokens = live.max_tokens if live.is_capped else 0
        out.append(Dispatch(live.ask.id, attempt.id, replica.spec.name, max_tokens, live.degraded))

    def _canary(self, live: RequestState, replica: Replica, now: float) -> Replica:
        """A replica that is out instead of the one that was chosen, now and then; not with what may have killed one."""
        if live.body_hash is not None and self._quarantine.knows(live.body_hash, now):
            return replica
        return replica.pool.canary(live.ask.tier, now) or replica

    def _commit(self, winner: Attempt, out: list[Command]) -> None:
        live = winner.live
        live.committed = winner
        live.replica = winner.replica
        if live.hedged is not None:
            self._hedges.committed(winner)
        out.append(Commit(live.ask.id, winner.id, live.hedged))
        self._cancel(live, out)

    def _cancel(self, live: RequestState, out: list[Command]) -> None:
        """Have every open attempt closed that nobody waits for any more."""
        for attempt in live.open:
            if not attempt.cancelled and (live.outcome is not None or attempt is not live.committed):
                attempt.cancelled = True
                out.append(Cancel(live.ask.id, attempt.id))

    def _give_up(self, replica: Replica, out: list[Command]) -> None:
        """Close the attempts of which nothing was shown at a replica that is down: they may hang there for ever.

        When they are closed they are tried elsewhere, or refused.
        """
        for attempt in self._attempts.values():
            if attempt.replica is replica and attempt.first_at is None and not attempt.cancelled:
                attempt.cancelled = True
                out.append(Cancel(attempt.live.ask.id, attempt.id))

    def _rescue(self, pool: Pool, out: list[Command], now: float) -> None:
        """Take from replicas that are silent the requests that wait there for a first token, to be tried elsewhere.

        As many as others have room for: the rest may still be answered. Whole answers, which show nothing before they
        are complete, only where streams hear nothing either. Not a canary, which was sent to hear whether there is
        silence still; and not a prompt that is expected to take as long.
        """
        silent = [r for r in pool.replicas.values() if r.pulse.out is EjectionReason.STALLED and not r.slots]
        if not silent or pool.room:
            return
        taken, spare = 0, round(pool.headroom * pool.slots)
        unheard = {
            attempt.replica.spec.name
            for attempt in self._attempts.values()
            if attempt.live.ask.visible and not attempt.paused and attempt.opened_at < attempt.replica.pulse.out_at
        }
        for attempt in self._attempts.values():
            replica, live = attempt.replica, attempt.live
            if attempt.first_at is not None or attempt.cancelled or replica not in silent:
                continue
            if not live.ask.visible and replica.spec.name not in unheard:
                continue
            expected_s = 0.0 if attempt.facts is None else attempt.facts.expected_s
            is_late = now - attempt.opened_at > RESCUE_FACTOR * expected_s
            if not is_late or attempt.opened_at >= replica.pulse.out_at or taken >= spare:
                continue
            if live.outcome is None and self._retries.may_be_made(live, replica, taken):
                taken += 1
                attempt.cancelled = True
                out.append(Cancel(live.ask.id, attempt.id))

    def _conclude(
        self, live: RequestState, attempt: Attempt, finish: AttemptResult, out: list[Command], now: float
    ) -> None:
        """Decide what the end of an attempt means for a request that has no outcome yet."""
        end = AttemptOutcome.CANCELLED if attempt.cancelled else finish.end
        if live.committed not in (None, attempt):
            return
        if end is AttemptOutcome.REJECTED and live.committed is not None:
            self._refuse(
                live, Outcome.INVALID, Reason.UPSTREAM_REJECTED, out, now
            )  # said inside a stream that had begun
            return
        if end is AttemptOutcome.REJECTED and live.committed is None and finish.status in OWN_REFUSALS:
            if live.open:
                self._arm(live)  # the other attempt may be answered
                return
            if attempt.replica.pool.differs(attempt.replica) and self._retry(live, attempt, out, now, in_pool=True):
                return
        if end is AttemptOutcome.COMPLETE or end is AttemptOutcome.REJECTED:
            if live.committed is None:
                self._commit(attempt, out)
            ok = end is AttemptOutcome.COMPLETE
            live.decide(Outcome.OK if ok else Outcome.INVALID, None if ok else Reason.UPSTREAM_REJECTED, now)
            return
        if live.committed is None:
            if live.open:
                self._arm(live)  # the deadline is that of the attempt that is left
                return
            barred = live.body_hash is not None and self._quarantine.bars(live.body_hash, now)
            if not barred and is_retried(end, finish.status) and self._retry(live, attempt, out, now):
                return
        self._refuse(live, Outcome.ERROR, FAILURES[end], out, now, finish.retry_after_s)

    def _broke(self, live: RequestState, replica: Replica, body_hash: int, out: list[Command], now: float) -> None:
        """A replica broke off with this request. If it is the second one, who waits with the same is refused."""
        live.body_hash = body_hash
        is_down = replica.breaker.state is ReplicaState.DOWN
        self._quarantine.broke(body_hash, replica.spec.name, is_down, doubt_s(replica.pool.spec.health), now)
        if self._quarantine.bars(body_hash, now):
            for other in [other for pool in self._fleet for other in pool.room if other.body_hash == body_hash]:
                self._quarantine.refuses(body_hash, now)
                self._refuse(other, Outcome.INVALID, Reason.QUARANTINED, out, now)

    def _retry(
        self, live: RequestState, failed: Attempt, out: list[Command], now: float, in_pool: bool = False
    ) -> bool:
        """Send it elsewhere, if there is time left; False if nothing is to be done for it."""
        replica = self._retries.elsewhere(live, failed, in_pool)
        if replica is None:
            return False
        if replica.pool is not live.pool:
            live.move(replica.pool)
        if not self._has_expired(live, out, now):
            self._dispatch(live, replica, out, now)
        return True

    def _offer(self, pool: Pool, saturated: bool, out: list[Command], now: float) -> None:
        """There may be room on an engine of `pool`, where there was none if it was `saturated`."""
        if pool.room:
            self._pump(pool, out, now)
        elif not saturated or not pool.saturated:
            pool.drain.opened(saturated, now)

    def _taken_for_read(self, live: RequestState, out: list[Command], now: float) -> None:
        """The prompt of a whole answer should be read by now: its replica may take others."""
        if live.ask.visible:
            return
        for attempt in live.open:
            pool = attempt.replica.pool
            saturated = pool.saturated
            pool.expire(attempt.replica, now)
            pool.sync(attempt.replica)
            self._offer(pool, saturated, out, now)

    def _pump(self, pool: Pool, out: list[Command], now: float) -> None:
        """Give free slots to those who wait. A band whose head must wait (reserved slots) does not block others."""
        served = True
        while served:
            served = False
            for live in pool.room.heads(now):
                replica = pool.pick(live.ask.tier, None, self._random.random())
                if replica is None:
                    continue
                served = True
                self._serve(live, replica, out, now)
                break

    def _serve(self, live: RequestState, replica: Replica, out: list[Command], now: float) -> None:
        """The turn of one who waits has come: it is sent, unless it is too late for it."""
        if self._has_expired(live, out, now):
            return
        hopeless = self._admission.is_hopeless(live, replica, now)
        if hopeless:
            wait_s = self._drains_in_s(replica.pool, live)
            self._refuse(live, Outcome.REFUSED, Reason.PREDICTED, out, now, wait_s, hopeless)
        else:
            replica.pool.drain.opened(True, now)
            self._unqueue(live)
            self._dispatch(live, replica, out, now)

    # ---- ending

    def _refuse(
        self,
        live: RequestState,
        outcome: Outcome,
        why: Reason,
        out: list[Command],
        now: float,
        retry_after_s: float | None = None,
        detail: str = "",
    ) -> None:
        """End a request that has no open attempt with an error."""
        self._unqueue(live)
        live.decide(outcome, why, now)
        out.append(Refuse(live.ask.id, why, retry_after_s, detail))
        self._settle(live, out, now)

    def _abandon(self, live: RequestState, outcome: Outcome, why: Reason, out: list[Command], now: float) -> None:
        """End a request whose attempts, if any, have to be cancelled first."""
        if live.outcome is not None:
            return
        self._unqueue(live)
        live.decide(outcome, why, now)
        if outcome is not Outcome.ABANDONED:
            wait_s = None if live.pool is None else self._drains_in_s(live.pool, live)
            out.append(Refuse(live.ask.id, why, wait_s))
        self._cancel(live, out)
        self._settle(live, out, now)

    def _expire(self, live: RequestState, why: Reason, out: list[Command], now: float) -> None:
        """End a request whose deadline has passed."""
        self._abandon(live, Outcome.REFUSED if why is Reason.PREDICTED else Outcome.TIMEOUT, why, out, now)

    def _has_expired(self, live: RequestState, out: list[Command], now: float) -> bool:
        """Whether a deadline of one that is not being served has passed, its alarm not heard yet; it ends then."""
        at, why = next_deadline(live)
        if at <= now:
            self._expire(live, why, out, now)
        return at <= now

    def _cut(self, live: RequestState, why: Reason, out: list[Command], now: float) -> None:
        """End an answer of which the client has a part."""
        live.decide(Outcome.CUT, why, now)
        out.append(Cut(live.ask.id, why, live.prompt_likely * live.ask.batch))
        self._cancel(live, out)
        self._settle(live, out, now)

    def _watch(self, attempt: Attempt, tokens: int, out: list[Command], now: float) -> None:
        """Whether an answer has gone on for longer than nearly all others, where these could use its place."""
        live, pool = attempt.live, attempt.replica.pool
        needed = bool(pool.room) or pool.headroom < SPARE
        if needed and live.ask.choices == 1 and live.can_be_cut and self.forecaster.is_overlong(attempt, tokens):
            self._cut(live, Reason.OUTPUT_LENGTH, out, now)

    def _settle(self, live: RequestState, out: list[Command], now: float) -> None:
        """Close the books on a request that has an outcome and no open attempt."""
        if live.outcome is None or live.open or live.ask.id not in self._live:
            return
        del self._live[live.ask.id]
        self._alarms.clear(live.ask.id)
        if live.body_hash is not None and live.outcome is Outcome.OK:
            self._quarantine.served(live.body_hash)
        self._hedges.ended(live)
        record = self._books.close(live, now)
        if live.pool is not None:
            live.pool.demand.ended(record.outcome.counts, record.good, record.output_tokens)
        out.append(Ended(record))
        live.committed = None  # live and attempt hold each other: left to the collector, they cost more than they do

    def _unqueue(self, live: RequestState) -> None:
        if live.waiting:
            assert live.pool is not None
            live.waiting = False
            live.pool.room.remove(live)

    # ---- alarms

    def _arm(self, live: RequestState) -> None:
        """Be woken at the next deadline, or before: a wake that is early sets the alarm anew."""
        at, _ = next_deadline(live)
        if at < self._alarms.at(live.ask.id):
            self._alarms.set(live.ask.id, at)

    def _breaker_moved(self, replica: Replica, out: list[Command], now: float) -> None:
        """The breaker of `replica` opened or closed. Who waits for a pool without replicas goes to one that has some.

        If there is none they stay, for as long as their deadlines let them: a replica may come back.
        """
        pool = replica.pool
        health = pool.spec.health
        if replica.breaker.state is ReplicaState.DOWN:
            self._quarantine.died(replica.spec.name, now)
        self._look_by(now + (min(health.open_s, SWEEP_S) if health.slow_start_s else health.open_s))
        if pool.alive:
            return
        for live in list(pool.room):
            if self._has_expired(live, out, now):
                continue
            other = self._places.find(live, now)
            if isinstance(other, Pool):
                self._unqueue(live)
                self._enter(live, other, out, now)

    def _look_by(self, at: float) -> None:
        """Look at breakers, and at all replicas, at `at` or before."""
        if at < self._alarms.at(BREAKERS):
            self._alarms.set(BREAKERS, at)

    def _cool(self, out: list[Command], now: float) -> None:
        """Let replicas whose time is up try again, and judge them all; come back for the others; serve who waits."""
        self._alarms.set(BREAKERS, now + self._fleet.cool(now))
        for pool in self._fleet:
            self._rescue(pool, out, now)
            self._pump(pool, out, now)

    # ---- when to come back

    def _drains_in_s(self, pool: Pool, live: RequestState) -> float:
        """Predicted seconds until a request like this would get a slot."""
        rate = pool.drain.per_s
        wait_s = (pool.room.ahead_of(live.ask.tier.priority) + 1) / rate if rate else DEFAULT_RETRY_AFTER_S
        return self._jittered(wait_s)

    def _jittered(self, wait_s: float) -> float:
        """Spread over half to one and a half times, lest a crowd that was sent away return at once."""
        return min(MAX_RETRY_AFTER_S, wait_s) * (0.5 + self._random.random())
