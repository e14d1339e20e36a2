"""The cost of the decisions alone: the controller called in process, in virtual time, in the way its driver calls it.

The fleet is steady: each replica serves IN_FLIGHT streamed requests of SERVICE_S, and is scraped once a second. No
request is refused. Everything the controller does for a request is counted, alarms and scrapes included. With `warm`,
the requests are turns of conversations of 4,000 prompt tokens, each cached by one replica.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.core.commands import Command, Commit, Dispatch, Ended
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.request import NO_AFFINITY, Affinity, Endpoint, Prefix, Request
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.sample import Sample
from gateway.core.snapshot import Snapshot
from gateway.policy.load import load as load_policy
from loadtests.bench import canned
from loadtests.bench.policy import policy

IN_FLIGHT = 8
SERVICE_S = 0.5
PREFILL_SHARE = 0.2
"""Share of its time that a request spends before its first token."""
WARM_PREFILL_SHARE = 0.05
"""The same share for a request with a cached prompt. All prompts of a replica together must leave its engine time for
answers.
"""
TALKS = 2 * IN_FLIGHT
"""Conversations per replica: enough that a turn ends before the next turn of its conversation begins."""
PROMPT_TOKENS, PROMPT_BYTES = 4000, 16_000
ENDS = (*range(512, 4097, 512), *range(6144, PROMPT_BYTES, 2048))
"""Bytes at which the blocks of a cached prompt end (`gateway.wire.prefix`)."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The order to decide `requests` requests over `replicas` replicas. The same number of requests comes before, to
    warm up.
    """

    replicas: int
    requests: int = 20_000
    warm: bool = False


@dataclass(frozen=True, slots=True)
class DecisionsResult:
    """CPU seconds of this process for `requests`."""

    requests: int
    cpu_s: float
    errors: list[str]


class Fleet:
    """A controller, its clock, and the requests that are under way."""

    def __init__(self, replicas: int, warm: bool = False) -> None:
        self._policy = fleet_policy(replicas)
        self._controller = Controller(self._policy, random.Random(1))
        self._names = [replica.name for pool in self._policy.pools.values() for replica in pool.replicas]
        self._model = self._policy.models[canned.MODEL]
        self._key = next(iter(self._policy.keys.values()))
        self._tier = self._policy.tiers[self._key.tier]
        self._prefilling: deque[int] = deque()
        self._decoding: deque[int] = deque()
        self._most = IN_FLIGHT * replicas
        self._step_s = SERVICE_S / self._most
        self._scrapes_per_step = replicas * self._step_s
        self._owed_scrapes, self._next_scrape = 0.0, 0
        self._prefixes = [_prefix(talk) for talk in range(TALKS * replicas if warm else 0)]
        self._prefill_share = WARM_PREFILL_SHARE if warm else PREFILL_SHARE
        prompt_tokens = PROMPT_TOKENS if warm else 270
        self._finish = AttemptResult(AttemptOutcome.COMPLETE, prompt_tokens, output_tokens=48, status=200)
        self._sample = Sample(healthy=True, waiting=0, running=IN_FLIGHT, kv_fraction=0.3)
        self._now = 1000.0
        self._request_ids = 0
        self._filling = replace(self._sample, kv_fraction=None)
        """The scrape while the fleet is still being filled."""
        for name in self._names:
            self._controller.observe(name, self._filling, self._now)
        self._warm_up()

    def serve(self, requests: int) -> None:
        """One request arrives and the oldest ends, `requests` times. Raises ValueError if one is refused or late."""
        for _ in range(requests):
            self._now += self._step_s
            self._scrape()
            self._begin()
            if len(self._prefilling) > self._most * self._prefill_share:
                self._decode(self._prefilling.popleft())
            if len(self._prefilling) + len(self._decoding) > self._most:
                self._end(self._decoding.popleft())

    def snapshot(self) -> Snapshot:
        """State of the controller now."""
        return self._controller.snapshot(self._now)

    def _warm_up(self) -> None:
        """Serve a turn of each conversation, so that one replica for short prompts has cached it."""
        pool = next(iter(self._controller.state.fleet))
        replicas = list(pool.replicas.values())
        for talk, prefix in enumerate(self._prefixes):
            replicas[talk % len(replicas)].cache.sent(prefix)

    def _scrape(self) -> None:
        is_full = len(self._prefilling) + len(self._decoding) == self._most
        sample = self._sample if is_full else self._filling
        self._owed_scrapes += self._scrapes_per_step
        while self._owed_scrapes >= 1:
            self._owed_scrapes -= 1
            self._next_scrape = (self._next_scrape + 1) % len(self._names)
            self._controller.observe(self._names[self._next_scrape], sample, self._now)
            self._alarm()

    def _begin(self) -> None:
        self._request_ids += 1
        commands = self._controller.arrive(self._ask(self._request_ids, self._now), self._now)
        self._alarm()
        self.hear(commands)

    def _decode(self, attempt: int) -> None:
        self._controller.first_token(attempt, self._now)
        self._alarm()
        self._controller.progress(attempt, 24, self._now)
        self._alarm()
        self._decoding.append(attempt)

    def _end(self, attempt: int) -> None:
        commands = self._controller.finish(attempt, self._finish, self._now)
        self._alarm()
        self.hear(commands)

    def _alarm(self) -> None:
        """Wake the controller if its timer is due, as the driver does after every call."""
        if self._controller.wake_at() <= self._now:
            self.hear(self._controller.wake(self._now))

    def hear(self, commands: list[Command]) -> None:
        """Carry out the controller's commands. A request may have waited for the replica with its cache. Raises
        ValueError if one fails."""
        for command in commands:
            if isinstance(command, Dispatch):
                self._controller.sent(command.attempt, self._now)
                self._alarm()
                self._prefilling.append(command.attempt)
            elif not isinstance(command, Commit | Ended) or (isinstance(command, Ended) and not command.record.good):
                raise ValueError(f"{command}: the fleet did not stay steady, as it must")

    def _ask(self, number: int, now: float) -> Request:
        prefixes = self._prefixes
        return Request(
            id=number,
            policy=self._policy,
            tier=self._tier,
            model=self._model,
            tenant=self._key.tenant,
            endpoint=Endpoint.CHAT,
            stream=True,
            prompt_bytes=PROMPT_BYTES if prefixes else 1000,
            prompt_exact=None,
            max_tokens=128,
            choices=1,
            body_bytes=canned.REQUEST_BODY_BYTES,
            head_at=now,
            body_at=now,
            affinity=Affinity(prefixes[number % len(prefixes)]) if prefixes else NO_AFFINITY,
        )


def _prefix(talk: int) -> Prefix:
    """The blocks of one conversation; no other conversation shares them."""
    return Prefix(tuple(hash((talk, end)) for end in ENDS), ENDS, PROMPT_BYTES)


def fleet_policy(replicas: int) -> Policy:
    """The bench's policy for a fleet that exists only here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(policy(range(10_000, 10_000 + replicas), SERVICE_S))
        return load_policy(path)


def run_decisions(spec: Decisions) -> DecisionsResult:
    """Fill the fleet, then measure."""
    try:
        fleet = Fleet(spec.replicas, spec.warm)
        fleet.serve(IN_FLIGHT * spec.replicas + spec.requests)
        before = time.process_time()
        fleet.serve(spec.requests)
        return DecisionsResult(spec.requests, time.process_time() - before, [])
    except ValueError as error:
        return DecisionsResult(0, 0.0, [str(error)])
