"""Virtual time: carries what happens to a decider, and its commands to the replicas.

The rules, those of the gateway's own driver:

1. Things happen one after the other: of those due at the same time first what replicas did and what was planned, in
   the order in which it was noted, then the decider's alarm, then arrivals.
2. Commands are carried out after the call has returned; what they lead to is told in the order in which it came about.
3. A closed attempt is told once: a cancelled one after its request is out of the engine, slot and KV cache included.
4. The network takes no time. A replica that is not up refuses connections; one that dies breaks off what it ran.

A run is the same, bit for bit, whenever arrivals, policy, fleet, options and seed are the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from gateway.core.model import (
    Ask,
    Cancel,
    Command,
    Commit,
    Dispatch,
    End,
    Ended,
    Endpoint,
    Finish,
    Refuse,
    Sample,
)
from gateway.core.rules import Policy
from gateway.sim.decider import Decider
from gateway.sim.fleet import Fault, Harm, Host
from gateway.sim.replica import Event, Kind, Request
from gateway.sim.tally import Tally, TierTally
from gateway.sim.workload import Arrival

FIRST_TOKEN, FINISHED = Kind.FIRST_TOKEN, Kind.FINISHED
JITTER = 0.1
"""Pauses between two looks at a replica are drawn from 90 to 110% of their interval, as the gateway's own are."""
SAMPLE_S = 1.0
"""Slots and KV cache in use are looked at this often."""
BYTES_PER_TOKEN = 4
"""Of a prompt whose length in tokens the gateway is not told."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is simulated beside arrivals and replicas. Times in seconds of virtual time."""

    duration_s: float = math.inf
    """Arrivals from here on are left out; those before it are waited for."""
    warmup_s: float = 0.0
    """What arrives before is served, but not counted."""
    watched: bool = True
    """Whether replicas are checked and scraped at the policy's intervals."""
    progress_s: float = 1.0
    """How often streams report progress; the gateway does so at most four times a second."""
    patience_s: float = math.inf
    """A client leaves that has seen nothing for so long: no first token, of whole answers no answer."""
    prompts_known: bool = True
    """Whether the gateway is told prompt tokens exactly; else bytes, `BYTES_PER_TOKEN` each."""
    give_up_s: float = 3600.0
    """Requests that are not over so long after the last arrival are misses."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What had been used by time `at`."""

    at: float
    arrived: int
    in_system_s: float
    """Integral of the number of requests in the system, over time."""
    busy_s: float
    """Seconds of steps of all replicas."""
    preemptions: int


class Trip:
    """One request on its way."""

    __slots__ = ("arrival", "ask", "cut", "dispatched", "output_tokens", "seen", "tier")

    def __init__(self, arrival: Arrival, ask: Ask, tier: TierTally, output_tokens: int) -> None:
        self.arrival = arrival
        self.ask = ask
        self.tier = tier
        self.output_tokens = output_tokens
        """What the model generates under the client's cap and the tier's."""
        self.dispatched = False
        self.seen = False
        """Whether its stream has begun."""
        self.cut = False
        """Whether the answer is shorter than that, because the dispatch said so."""


class Flight:
    """One attempt inside a replica."""

    __slots__ = ("host", "output_tokens", "trip")

    def __init__(self, trip: Trip, host: Host, output_tokens: int) -> None:
        self.trip = trip
        self.host = host
        self.output_tokens = output_tokens


class Engine:
    """One run. `step` through `run`, then read `tally` and the hosts."""

    def __init__(
        self, decider: Decider, policy: Policy, hosts: dict[str, Host], options: Options, tally: Tally, seed: int
    ) -> None:
        self.now = 0.0
        self.events = 0
        """Things that happened: arrivals, ends of engine runs, alarms, looks at replicas."""
        self.arrived = 0
        self.opened: Reading | None = None
        """What had been used when the warm-up was over."""
        self.closed: Reading | None = None
        """What had been used when the last request could have arrived."""
        self.trips: dict[int, Trip] = {}
        self._decider = decider
        self._policy = policy
        self._hosts = hosts
        self._options = options
        self._tally = tally
        self._random = Random(f"{seed} watch")
        self._flights: dict[int, Flight] = {}
        self._heap: list[tuple[float, int, Host | Callable[[], None]]] = []
        self._pushed = 0
        self._in_system = 0
        self._in_system_s = 0.0
        self._changed_at = 0.0
        self._told: deque[tuple[Callable[..., list[Command]], tuple[object, ...]]] = deque()
        self._acts: dict[type, Callable[..., None]] = {
            Dispatch: self._dispatch,
            Commit: _nothing,
            Cancel: self._cancel,
            Refuse: _nothing,
            Ended: self._end,
        }
        self.at(options.warmup_s, self._open)
        for host in hosts.values():
            self._begin_watching(host)
        self._again(SAMPLE_S, self._sample)
        if options.progress_s < math.inf:
            self._again(options.progress_s, self._report_progress)

    # ---- time

    def at(self, at: float, what: Callable[[], None]) -> None:
        """Call `what` at time `at`, which is not before now."""
        self._pushed += 1
        heappush(self._heap, (at, self._pushed, what))

    def _again(self, every_s: float, what: Callable[[], None]) -> None:
        """Call `what` for ever."""

        def again() -> None:
            what()
            self.at(self.now + every_s, again)

        self.at(self.now + every_s, again)

    def plan(self, fault: Fault) -> None:
        """Let a fault befall its replica when its time comes."""
        self.at(fault.at, lambda: self._befall(fault))

    def run(self, arrivals: Iterator[Arrival]) -> None:
        """Until every request is over, or is given up."""
        heap, trips, wake_at = self._heap, self.trips, self._decider.wake_at
        duration_s = self._options.duration_s
        upcoming = next(arrivals, None)
        over = math.inf
        while True:
            if upcoming is None or upcoming.at >= duration_s:
                arrival_at = math.inf
                if over == math.inf:
                    ends_at = duration_s if duration_s < math.inf else self.now
                    self.at(ends_at, self._close)
                    over = ends_at + self._options.give_up_s
                if self.closed is not None and not trips:
                    return
            else:
                arrival_at = upcoming.at
            due = heap[0][0] if heap else math.inf
            alarm = wake_at()
            if due <= alarm and due <= arrival_at:
                if due > over:
                    return
                _, _, thing = heappop(heap)
                if type(thing) is Host:
                    if thing.due != due or thing.noted != due:
                        continue
                    thing.noted = math.inf
                    self.now = due
                    self.events += 1
                    self._advance(thing)
                else:
                    self.now = due
                    self.events += 1
                    thing()  # type: ignore[operator]
                self._carry_out([])
            elif alarm <= arrival_at:
                if alarm > over:
                    return
                # An alarm may have been set for a time that had passed already.
                self.now = max(alarm, self.now)
                self.events += 1
                self._carry_out(self._decider.wake(self.now))
            else:
                assert upcoming is not None
                self.now = arrival_at
                self.events += 1
                self._arrive(upcoming)
                upcoming = next(arrivals, None)

    # ---- what happens

    def _arrive(self, arrival: Arrival) -> None:
        now = self.now
        ask, trip = self._asked(arrival)
        self._count(1)
        self.trips[ask.id] = trip
        trip.tier.waits(now)
        if self._options.patience_s < math.inf:
            self.at(now + self._options.patience_s, lambda: self._lose_patience(ask.id))
        self._carry_out(self._decider.arrive(ask, now))

    def _asked(self, arrival: Arrival) -> tuple[Ask, Trip]:
        """The request as the gateway knows it. Raises ValueError where policy and workload do not go together."""
        policy, tier, model = self._policy, self._tally.tiers.get(arrival.tier), self._policy.model(arrival.model)
        if tier is None:
            raise ValueError(f"the workload has tier {arrival.tier}; the policy has {', '.join(policy.tiers)}")
        if model is None:
            raise ValueError(f"the workload asks for model {arrival.model}; the policy has {', '.join(policy.models)}")
        self.arrived += 1
        prompt_bytes = arrival.prompt_tokens * BYTES_PER_TOKEN
        ask = Ask(
            id=self.arrived,
            policy=policy,
            tier=tier.tier,
            model=model,
            tenant=arrival.tenant,
            endpoint=Endpoint.CHAT,
            stream=arrival.stream,
            prompt_bytes=prompt_bytes,
            prompt_exact=arrival.prompt_tokens if self._options.prompts_known else None,
            max_tokens=arrival.max_tokens,
            choices=1,
            body_bytes=prompt_bytes,
            head_at=self.now,
            body_at=self.now,
        )
        caps = tier.tier.caps
        asked = caps.max_tokens_default if arrival.max_tokens is None else arrival.max_tokens
        return ask, Trip(arrival, ask, tier, min(arrival.output_tokens, asked, caps.max_tokens_limit))

    def _lose_patience(self, ask_id: int) -> None:
        trip = self.trips.get(ask_id)
        if trip is not None and not trip.seen:
            self._tell(self._decider.leave, ask_id)

    def _advance(self, host: Host) -> None:
        """Note what a replica has done by now."""
        events = host.advance(self.now)
        self._push(host)
        self._note(events)

    def _note(self, events: list[Event]) -> None:
        for event in events:
            kind = event.kind
            if kind is FIRST_TOKEN:
                flight = self._flights[event.id]
                if flight.trip.arrival.stream:
                    flight.trip.seen = True
                    self._told.append((self._decider.first_token, (event.id,)))
            elif kind is FINISHED:
                flight = self._flights.pop(event.id)
                tokens = flight.output_tokens
                finish = Finish(End.COMPLETE, flight.trip.arrival.prompt_tokens, tokens, tokens, 200)
                self._told.append((self._decider.finish, (event.id, finish)))

    def _push(self, host: Host) -> None:
        """Come back when the replica has something to do; an entry whose time is not `host.due` is stale."""
        due = host.due
        if due != host.noted:
            host.noted = due
            if due < math.inf:
                self._pushed += 1
                heappush(self._heap, (due, self._pushed, host))

    def _settle(self, host: Host) -> None:
        """Take what the replica has done at this very moment, before it is interfered with."""
        if host.due <= self.now:
            self._note(host.advance(self.now))

    def _befall(self, fault: Fault) -> None:
        host = self._hosts[fault.replica]
        self._settle(host)
        host.suffer(fault, self.now)
        self._push(host)
        if fault.harm is Harm.DEAD:
            for attempt, flight in [(a, f) for a, f in self._flights.items() if f.host is host]:
                del self._flights[attempt]
                self._tell(self._decider.finish, attempt, Finish(End.TRUNCATED if flight.trip.seen else End.RESET))

    # ---- looks at the run

    def _open(self) -> None:
        self.opened = self._read()

    def _close(self) -> None:
        self.closed = self._read()

    def _read(self) -> Reading:
        self._count(0)
        hosts = self._hosts.values()
        return Reading(
            self.now,
            self.arrived,
            self._in_system_s,
            sum(host.busy_s(self.now) for host in hosts),
            sum(host.preemptions for host in hosts),
        )

    def _count(self, change: int) -> None:
        """The number of requests in the system is about to change."""
        self._in_system_s += self._in_system * (self.now - self._changed_at)
        self._in_system += change
        self._changed_at = self.now

    def _sample(self) -> None:
        if self.opened is not None and self.closed is None:
            for host in self._hosts.values():
                self._tally.sampled(host.model.running / host.profile.max_num_seqs, host.model.kv_fraction)

    # ---- looks at replicas

    def _begin_watching(self, host: Host) -> None:
        self._tell(self._decider.observe, host.name, Sample(context_tokens=host.profile.max_model_len))
        if self._options.watched:
            pool = next(p for p in self._policy.pools.values() if any(r.name == host.name for r in p.replicas))
            self._watch(host, pool.health.interval_s, self._check, first=True)
            self._watch(host, pool.health.scrape_interval_s, self._scrape, first=True)

    def _watch(self, host: Host, interval_s: float, look: Callable[[Host], None], first: bool = False) -> None:
        """Look at a replica again and again, each at its own pace."""

        def again() -> None:
            look(host)
            self._watch(host, interval_s, look)

        draw = self._random.random()
        self.at(self.now + interval_s * (draw if first else 1.0 + JITTER * (2.0 * draw - 1.0)), again)

    def _check(self, host: Host) -> None:
        self._tell(self._decider.observe, host.name, Sample(healthy=host.up))

    def _scrape(self, host: Host) -> None:
        if host.up:
            model = host.model
            sample = Sample(waiting=model.waiting, running=model.running, kv_fraction=model.kv_fraction)
            self._tell(self._decider.observe, host.name, sample)

    def _report_progress(self) -> None:
        now, flights, progress = self.now, self._flights, self._decider.progress
        for host in self._hosts.values():
            if host.due == math.inf:
                continue
            self._settle(host)
            self._push(host)
            self._carry_out([])
            for attempt, tokens in host.model.decoding(now):
                if attempt in flights and flights[attempt].trip.seen:
                    self._carry_out(progress(attempt, tokens, now))

    # ---- commands

    def _tell(self, call: Callable[..., list[Command]], *args: object) -> None:
        self._told.append((call, args))

    def _carry_out(self, commands: list[Command]) -> None:
        """Carry out commands, and tell what they lead to, until nothing follows."""
        acts, told = self._acts, self._told
        while True:
            for command in commands:
                acts[type(command)](command)
            if not told:
                return
            call, args = told.popleft()
            commands = call(*args, self.now)

    def _dispatch(self, command: Dispatch) -> None:
        trip = self.trips[command.ask]
        host = self._hosts[command.replica]
        attempt, now = command.attempt, self.now
        if not trip.dispatched:
            trip.dispatched = True
            trip.tier.waits_no_more(now)
        if not host.up:
            self._tell(self._decider.finish, attempt, Finish(End.UNREACHABLE))
            return
        arrival = trip.arrival
        self._tell(self._decider.sent, attempt)
        room = host.profile.max_model_len - arrival.prompt_tokens
        if command.max_tokens > room:
            self._tell(self._decider.finish, attempt, Finish(End.REJECTED, status=400))
            return
        output_tokens = min(arrival.output_tokens, command.max_tokens)
        # A default that was made to fit the context is what the engine would have done; anything else is our doing.
        trip.cut = output_tokens < trip.output_tokens and command.max_tokens < room
        self._flights[attempt] = Flight(trip, host, output_tokens)
        self._tally.dispatched(trip.tier, arrival.prompt_tokens + output_tokens, now)
        self._settle(host)
        host.add(Request(attempt, arrival.prompt_tokens, output_tokens), now)
        self._push(host)

    def _cancel(self, command: Cancel) -> None:
        flight = self._flights.get(command.attempt)
        if flight is None:
            return  # it has ended already, which is about to be told
        self._settle(flight.host)
        if command.attempt not in self._flights:
            return  # it has just ended
        del self._flights[command.attempt]
        flight.host.abort(command.attempt, self.now)
        self._push(flight.host)
        self._tell(self._decider.finish, command.attempt, Finish(End.CANCELLED))

    def _end(self, command: Ended) -> None:
        record, now = command.record, self.now
        self._count(-1)
        trip = self.trips.pop(record.ask.id)
        if not trip.dispatched:
            trip.tier.waits_no_more(now)
        self._tally.ended(trip.tier, trip.arrival, trip.output_tokens, record, trip.cut)


def _nothing(command: Command) -> None:
    """What a command means to a client that only waits."""
