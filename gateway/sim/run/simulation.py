"""The event loop of a simulation, in virtual time. It gives events to a decider, and carries out its commands at
replicas.

The rules are those of the gateway's own driver:

1. Events happen one after the other. Among events due at the same time, those of replicas and planned ones come first,
   in the order in which they were added. The decider's alarm comes next, arrivals last.
2. Commands are carried out after the decider's call has returned. The decider then learns of their events in
   the order in which they arose.
3. The decider learns of the end of an attempt once; if it was cancelled, after the engine has freed its slot and
   KV cache.
4. The network takes no time, except `path_s` of a profile and `ways_s` of the options, all of it on the way to the
   replica. A replica that is not up refuses connections; one that dies breaks off its running and arriving requests.

A run repeats bit for bit if arrivals, policy, fleet, options and seed are the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.policy import Policy
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.sim.engine.fleet import Fault, Host
from gateway.sim.engine.sequences import EngineRequest, ReplicaEvent, ReplicaEventKind
from gateway.sim.run.decider import Decider
from gateway.sim.run.meter import RunMeter
from gateway.sim.run.observed import ObservedRun
from gateway.sim.run.options import Options
from gateway.sim.run.requests import SimulatedAttempt, SimulatedRequest, asked
from gateway.sim.run.retries import from_the_first, rests_s
from gateway.sim.run.tally import Tally
from gateway.sim.workload.arrivals import BLOCK_TOKENS, Arrival

FIRST_TOKEN, FINISHED = ReplicaEventKind.FIRST_TOKEN, ReplicaEventKind.FINISHED


class Simulation(ObservedRun):
    """One run. Its results are in `tally`, `watch`, `requests` (those that are not over) and `hosts`."""

    def __init__(
        self, decider: Decider, policy: Policy, hosts: dict[str, Host], options: Options, tally: Tally, seed: int
    ) -> None:
        super().__init__(decider, policy, hosts, tally)
        self.options = options
        self.events = 0
        """Number of events: arrivals, ends of series of engine steps, alarms, and periodic work of the meter."""
        self.requests: dict[int, SimulatedRequest] = {}
        self.watch = RunMeter(self, seed, options.warmup_s, options.progress_s, options.watched)
        self._clients = Random(f"{seed} clients")
        self._ways = Random(f"{seed} ways")
        self._noise = Random(f"{seed} noise")
        self._asked = 0
        self._counted_at = 0.0
        self._in_system = 0
        self._heap: list[tuple[float, int, Host | Callable[[], None]]] = []
        self._pushed = 0
        self._told: deque[tuple[Callable[..., list[Command]], tuple[object, ...]]] = deque()
        self._acts: dict[type, Callable[..., None]] = {
            Dispatch: self._dispatch,
            Commit: _nothing,
            Cancel: self._cancel,
            Refuse: self._refuse,
            Cut: _nothing,
            Ended: self._end,
        }

    # ---- time

    def at(self, at: float, what: Callable[[], None]) -> None:
        """Call `what` at time `at`, which is not before now."""
        self._pushed += 1
        heappush(self._heap, (at, self._pushed, what))

    def plan(self, fault: Fault) -> None:
        """Schedule a fault."""
        self.at(fault.at, lambda: self._befall(fault))

    def run(self, arrivals: Iterator[Arrival]) -> None:
        """Run until every request is over or given up."""
        heap, requests, wake_at = self._heap, self.requests, self.decider.wake_at
        duration_s = self.options.duration_s
        give_up_at = math.inf
        self.watch.begin()
        self.carry_out([])
        upcoming = next(arrivals, None)
        while True:
            if upcoming is None or upcoming.at >= duration_s:
                arrival_at = math.inf
                if give_up_at == math.inf:
                    ends_at = duration_s if duration_s < math.inf else self.now
                    self.at(ends_at, self.watch.close)
                    give_up_at = ends_at + self.options.give_up_s
                if not requests and self.watch.closed is not None:
                    return
            else:
                arrival_at = upcoming.at
            due = heap[0][0] if heap else math.inf
            alarm = wake_at()
            if min(due, alarm, arrival_at) > give_up_at:
                return
            self.events += 1
            if due <= alarm and due <= arrival_at:
                _, _, thing = heappop(heap)
                if not isinstance(thing, Host):
                    self.now = due
                    thing()
                elif thing.noted == due:
                    self.now = due
                    thing.noted = math.inf
                    self.settle(thing)
                self.carry_out([])
            elif alarm <= arrival_at:
                self.now = max(alarm, self.now)  # the alarm's time may have passed before it was set
                self.carry_out(self.decider.wake(self.now))
            else:
                assert upcoming is not None
                self.now = arrival_at
                self._arrive(upcoming)
                upcoming = next(arrivals, None)

    def count(self, change: int) -> None:
        """Change the number of requests in the system by `change`, now."""
        self.in_system_s += self._in_system * (self.now - self._counted_at)
        self._in_system += change
        self._counted_at = self.now

    # ---- what happens

    def settle(self, host: Host) -> None:
        """Simulate a replica up to now, and handle its events. Called before the replica is changed, and when it is
        due.
        """
        if host.due > self.now:
            return
        for event in host.advance(self.now):
            self._happened(event)
        self._note(host)

    def _happened(self, event: ReplicaEvent) -> None:
        kind = event.kind
        if kind is FIRST_TOKEN:
            request = self.attempts[event.id].request
            request.seen = request.arrival.stream
            if request.latest.visible:
                self.tell(self.decider.first_token, event.id)
        elif kind is FINISHED:
            attempt = self.attempts.pop(event.id)
            tokens, attempt.request.cut = attempt.output_tokens, attempt.cut
            result = AttemptResult(AttemptOutcome.COMPLETE, attempt.request.arrival.prompt_tokens, tokens, tokens, 200)
            result.cached_tokens = event.hit_tokens
            self.tell(self.decider.finish, event.id, result)

    def _note(self, host: Host) -> None:
        """Schedule the next call of `advance`. An entry whose time differs from `noted` is stale."""
        due = host.due
        if due != host.noted:
            host.noted = due
            if due < math.inf:
                self._pushed += 1
                heappush(self._heap, (due, self._pushed, host))

    def _arrive(self, arrival: Arrival) -> None:
        self.arrived += 1
        self.count(1)
        believed, cost = self._believed(arrival), self._disturbance()
        self._ask(SimulatedRequest(arrival, self._request_ids(believed), self.tally.tiers[arrival.tier], cost))
        self.carry_out([])

    def _believed(self, arrival: Arrival) -> Arrival:
        """The arrival as the gateway sees it: with `noise`, the prompt length is multiplied by a random factor."""
        if not self.options.noise:
            return arrival
        tokens = max(1, round(arrival.prompt_tokens * self._disturbance()), len(arrival.prefix) * BLOCK_TOKENS)
        return replace(arrival, prompt_tokens=tokens)

    def _disturbance(self) -> float:
        sigma = self.options.noise
        return math.exp(self._noise.gauss(-sigma * sigma / 2.0, sigma)) if sigma else 1.0

    def _request_ids(self, arrival: Arrival) -> Request:
        """Make the request of an arrival, with the next id."""
        self._asked += 1
        return asked(arrival, self._asked, self.policy, self.options.prompts_known, self.now)

    def _ask(self, request: SimulatedRequest) -> None:
        """Let the client send its request, for the first time or again."""
        request_id = request.latest.id
        self.requests[request_id] = request
        request.tier.waits(self.now)
        if self.options.patience_s < math.inf:
            self.at(self.now + self.options.patience_s, lambda: self._lose_patience(request_id))
        self.tell(self.decider.arrive, request.latest)

    def _ask_again(self, request: SimulatedRequest) -> None:
        del self.requests[request.latest.id]
        request.again(self._request_ids(self._believed(request.arrival)))
        self._ask(request)

    def _lose_patience(self, request_id: int) -> None:
        request = self.requests.get(request_id)
        if request is not None and not request.seen:
            self.tell(self.decider.leave, request_id)

    def _befall(self, fault: Fault) -> None:
        host = self.hosts[fault.replica]
        self.settle(host)
        breaks_off = host.suffer(fault, self.now)
        self._note(host)
        if breaks_off:
            for attempt_id, attempt in [(i, a) for i, a in self.attempts.items() if a.host is host]:
                del self.attempts[attempt_id]
                outcome = AttemptOutcome.TRUNCATED if attempt.request.seen else AttemptOutcome.RESET
                self.tell(self.decider.finish, attempt_id, AttemptResult(outcome))

    # ---- commands

    def tell(self, call: Callable[..., list[Command]], *args: object) -> None:
        """Report an event to the decider, after all earlier events."""
        self._told.append((call, args))

    def carry_out(self, commands: list[Command]) -> None:
        """Carry out commands and report their events to the decider, until no more commands follow."""
        acts, told = self._acts, self._told
        while True:
            for command in commands:
                acts[type(command)](command)
            if not told:
                return
            call, args = told.popleft()
            commands = call(*args, self.now)

    def _dispatch(self, command: Dispatch) -> None:
        request, host = self.requests[command.request_id], self.hosts[command.replica]
        attempt_id, now, prompt_tokens = command.attempt, self.now, request.arrival.prompt_tokens
        if not request.dispatched:
            request.dispatched = True
            request.tier.waits_no_more(now)
        if not host.up:
            self.tell(self.decider.finish, attempt_id, AttemptResult(AttemptOutcome.UNREACHABLE))
            return
        self.tell(self.decider.sent, attempt_id)
        if host.refuses:
            self.tell(self.decider.finish, attempt_id, AttemptResult(AttemptOutcome.BUSY, status=503))
            return
        room = host.profile.max_model_len - prompt_tokens
        allowed = command.max_tokens or room
        if self.options.noise and request.arrival.max_tokens is None:
            allowed = min(allowed, room)  # the cap does not fit the context, because the prompt was underestimated
        if allowed > room or room < 1:
            refusal = AttemptResult(AttemptOutcome.REJECTED, prompt_tokens, status=400)
            refusal.context_tokens = host.profile.max_model_len
            self.tell(self.decider.finish, attempt_id, refusal)
            return
        output_tokens = allowed if host.balloons else min(request.arrival.output_tokens, allowed)
        # The answer counts as cut by us only if our cap makes it shorter, not if the engine's context does.
        cut = output_tokens < request.output_tokens and allowed < room
        self.attempts[attempt_id] = SimulatedAttempt(request, host, output_tokens, cut)
        self.tally.dispatched(request.tier, prompt_tokens + output_tokens, now)
        sent = EngineRequest(attempt_id, prompt_tokens, output_tokens, request.arrival.prefix, cost=request.cost)
        ways_s = self.options.ways_s
        way_s = host.profile.path_s + (self._ways.choice(ways_s) if ways_s else 0.0)
        host.reached_at = max(now + way_s, host.reached_at)
        if host.reached_at > now:
            self.at(host.reached_at, lambda: self._enter(host, sent))
        else:
            self._enter(host, sent)

    def _enter(self, host: Host, sent: EngineRequest) -> None:
        """Let a request arrive at its engine, unless its client left or its replica died on the way."""
        if sent.id in self.attempts:
            self.settle(host)
            host.add(sent, self.now)
            self._note(host)

    def _cancel(self, command: Cancel) -> None:
        attempt_id = command.attempt
        attempt = self.attempts.get(attempt_id)
        if attempt is None:
            return  # the attempt has ended, and the decider gets the report next
        self.settle(attempt.host)
        if attempt_id not in self.attempts:
            return  # the attempt has just ended
        del self.attempts[attempt_id]
        attempt.host.abort(attempt_id, self.now)
        self._note(attempt.host)
        self.tell(self.decider.finish, attempt_id, AttemptResult(AttemptOutcome.CANCELLED))

    def _refuse(self, command: Refuse) -> None:
        self.requests[command.request_id].retry_after_s = command.retry_after_s

    def _end(self, command: Ended) -> None:
        record = command.record
        request = self.requests[record.request.id]
        if not request.dispatched:
            request.tier.waits_no_more(self.now)
        self.tally.tried(request.tier, record)
        if request.tries <= self.options.retries and not request.seen:
            pause_s = rests_s(record, request.retry_after_s, request.tries, self._clients)
            if pause_s is not None:
                self.at(self.now + pause_s, lambda: self._ask_again(request))
                return
        del self.requests[record.request.id]
        self.count(-1)
        if request.tries > 1:
            from_the_first(record, record.request.body_at - request.arrival.at)
        self.tally.ended(request.tier, request.arrival, request.output_tokens, record, request.cut)


def _nothing(command: Command) -> None:
    """Ignore a command."""
