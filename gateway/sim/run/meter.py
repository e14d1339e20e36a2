"""Does the periodic work of a run: health checks, scrapes, progress reports, and the run's own samples of replicas."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gateway.core.sample import Sample
from gateway.sim.engine.fleet import Host
from gateway.sim.run.observed import ObservedRun

JITTER = 0.1
"""Pauses are a random 90 to 110% of their interval, as in the gateway."""
SAMPLE_S = 1.0
"""Slots and KV cache in use are sampled at this interval (seconds), for the result."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Sums from the start of the run up to the time `at`."""

    at: float
    arrived: int
    in_system_s: float
    """Integral over time of the number of requests in the system."""
    busy_s: float
    """Seconds with a step under way, summed over replicas."""
    preemptions: int
    queried_tokens: int
    """Prompt tokens of all sequences that have started."""
    hit_tokens: int
    """Those of `queried_tokens` that were found in a prefix cache."""


class RunMeter:
    """Does all periodic work of one run."""

    def __init__(self, engine: ObservedRun, seed: int, warmup_s: float, progress_s: float, watched: bool) -> None:
        """`warmup_s`: time of the first reading. `progress_s`: interval of progress reports. `watched`: whether there
        are health checks and scrapes.
        """
        self.opened: MeterReading | None = None
        """The reading at the end of the warm-up."""
        self.closed: MeterReading | None = None
        """The reading at the end of arrivals."""
        self._engine = engine
        self._warmup_s, self._progress_s, self._watched = warmup_s, progress_s, watched
        self._random = Random(f"{seed} watch")

    def begin(self) -> None:
        """Schedule the periodic work."""
        engine, progress_s = self._engine, self._progress_s
        engine.at(self._warmup_s, self._open)
        self._again(lambda: SAMPLE_S, self._sample)
        if progress_s < math.inf:
            self._again(lambda: progress_s, self._progress)
        for pool in engine.policy.pools.values():
            for replica in pool.replicas:
                host = engine.hosts[replica.name]
                context = host.profile.max_model_len
                engine.tell(engine.decider.observe, host.name, Sample(context_tokens=context, longest_tokens=context))
                if self._watched:
                    self._from_time_to_time(pool.health.interval_s, self._check, host)
                    self._from_time_to_time(pool.health.scrape_interval_s, self._scrape, host)

    def close(self) -> None:
        """Take the last reading, because no more requests will arrive."""
        self.closed = self._read()

    def _open(self) -> None:
        self.opened = self._read()

    def _read(self) -> MeterReading:
        engine = self._engine
        engine.count(0)
        hosts = engine.hosts.values()
        return MeterReading(
            engine.now,
            engine.arrived,
            engine.in_system_s,
            sum(host.busy_s(engine.now) for host in hosts),
            sum(host.preemptions for host in hosts),
            sum(host.queried_tokens for host in hosts),
            sum(host.hit_tokens for host in hosts),
        )

    def _again(self, pause_s: Callable[[], float], work: Callable[[], None]) -> None:
        """Do `work` again and again. `pause_s`: returns the seconds until the next call."""
        engine = self._engine

        def again() -> None:
            work()
            engine.at(engine.now + pause_s(), again)

        engine.at(engine.now + pause_s(), again)

    def _from_time_to_time(self, interval_s: float, work: Callable[[Host], None], host: Host) -> None:
        """Do `work` for one replica again and again, at other times than for other replicas."""
        draw = self._random.random
        self._engine.at(
            interval_s * draw(),
            lambda: self._again(lambda: interval_s * (1.0 + JITTER * (2.0 * draw() - 1.0)), lambda: work(host)),
        )

    def _check(self, host: Host) -> None:
        self._engine.tell(self._engine.decider.observe, host.name, Sample(healthy=host.up))

    def _scrape(self, host: Host) -> None:
        if host.up:
            waiting, running, kv_fraction = host.model.waiting, host.model.running, host.kv_fraction(self._engine.now)
            sample = Sample(
                waiting=waiting,
                running=running,
                kv_fraction=kv_fraction,
                cache_queries=host.queried_tokens,
                cache_hits=host.hit_tokens,
            )
            self._engine.tell(self._engine.decider.observe, host.name, sample)

    def _progress(self) -> None:
        """Report the progress of every visible answer that has grown."""
        engine = self._engine
        now, attempts, progress = engine.now, engine.attempts, engine.decider.progress
        for host in engine.hosts.values():
            if host.due == math.inf:
                continue
            engine.settle(host)
            engine.carry_out([])
            for attempt_id, tokens in host.model.decoding(now):
                attempt = attempts.get(attempt_id)
                if attempt is not None and attempt.request.latest.visible and tokens > attempt.told:
                    attempt.told = tokens
                    if commands := progress(attempt_id, tokens, now):
                        engine.carry_out(commands)

    def _sample(self) -> None:
        if self.opened is not None and self.closed is None:
            now, sampled = self._engine.now, self._engine.tally.sampled
            for host in self._engine.hosts.values():
                sampled(host.model.running / host.profile.max_num_seqs, host.kv_fraction(now))
