"""The engine model: its rules for any arrivals, and that leaps give the same results as steps."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sim.engine.profiles import PROFILES, Profile
from gateway.sim.engine.replica import SimulatedReplica
from gateway.sim.engine.sequences import EngineRequest, ReplicaEvent, ReplicaEventKind

from .reference import Reference

TINY = Profile(
    name="tiny",
    max_model_len=64,
    max_num_seqs=4,
    max_batched_tokens=16,
    kv_capacity_tokens=96,
    step_base_s=1.0,
    prefill_s_per_token=0.1,
    decode_s_per_sequence=0.01,
    kv_s_per_token=0.001,
)
PAID = replace(TINY, prefill_s_per_sequence=0.2)
"""A profile in which the beginning of each prompt costs time."""


FOREVER = 1e9


@dataclass(frozen=True)
class Arrival:
    """A request `after_ms` after the one before; its client leaves after `patience_ms`, if not None."""

    after_ms: int
    prompt_tokens: int
    output_tokens: int
    patience_ms: int | None
    cost: int = 1


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        after_ms=st.integers(0, 20_000),
        prompt_tokens=st.integers(1, 32),
        output_tokens=st.integers(0, 32),
        patience_ms=st.none() | st.integers(0, 40_000),
        cost=st.integers(1, 3),
    ),
    min_size=1,
    max_size=24,
)


@dataclass
class Run:
    """The results of one run of an engine."""

    events: list[ReplicaEvent] = field(default_factory=list)
    tokens: Counter[int] = field(default_factory=Counter)
    aborted: set[int] = field(default_factory=set)

    def of(self, kind: ReplicaEventKind) -> list[int]:
        return [event.id for event in self.events if event.kind is kind]


def bounds_hold(replica: SimulatedReplica) -> None:
    assert replica.running <= replica.profile.max_num_seqs
    assert 0 <= replica.kv_fraction <= 1
    assert 0 <= replica.kv_fraction <= replica.held_tokens / replica.profile.kv_capacity_tokens <= 1


def calls_of(arrivals: list[Arrival]) -> list[tuple[float, int, EngineRequest | None]]:
    """(time, id, request or None for an abort), in order."""
    calls: list[tuple[float, int, EngineRequest | None]] = []
    at_ms = 0
    for id, arrival in enumerate(arrivals):
        # Steps of TINY take whole milliseconds. These fractions avoid calls at the end of a step, where the rounding of
        # a leap would decide the order.
        at_ms += arrival.after_ms
        at = at_ms / 1e3 + id * 1e-5
        calls.append((at, id, EngineRequest(id, arrival.prompt_tokens, arrival.output_tokens, cost=arrival.cost)))
        if arrival.patience_ms is not None:
            calls.append((at + arrival.patience_ms / 1e3 + 5e-4, id, None))
    return sorted(calls, key=lambda call: call[0])


def play(arrivals: list[Arrival], profile: Profile = TINY, *, leap: bool) -> tuple[Run, SimulatedReplica]:
    """Feed the arrivals and departures to an engine, then let it run dry."""
    replica, run = SimulatedReplica(profile), Run()

    def until(now: float) -> None:
        while replica.step_at() <= now:
            if leap:
                run.events += replica.advance(now)
                return
            step = replica.step()
            assert len(set(step.tokens)) == len(step.tokens)
            run.tokens.update(step.tokens)
            run.events += step.events
            bounds_hold(replica)

    for now, id, request in calls_of(arrivals):
        until(now)
        if request is not None:
            replica.add(request, now)
        elif replica.abort(id, now):
            run.aborted.add(id)
        bounds_hold(replica)
    until(FOREVER)
    return run, replica


@given(ARRIVALS)
def test_every_request_finishes_once_or_was_aborted_and_tokens_are_conserved(arrivals: list[Arrival]) -> None:
    run, replica = play(arrivals, leap=False)
    finished = run.of(ReplicaEventKind.FINISHED)
    assert len(finished) == len(set(finished))
    assert set(finished) | run.aborted == set(range(len(arrivals)))
    assert not set(finished) & run.aborted
    for id in finished:
        assert run.tokens[id] == arrivals[id].output_tokens
    for id in run.aborted:
        assert run.tokens[id] <= arrivals[id].output_tokens
    first = run.of(ReplicaEventKind.FIRST_TOKEN)
    assert len(first) == len(set(first))
    assert set(first) == {id for id, tokens in run.tokens.items() if tokens}
    assert (replica.running, replica.waiting, replica.kv_fraction, replica.held_tokens) == (0, 0, 0, 0)
    assert replica.step_at() == replica.next_at() == math.inf


@given(ARRIVALS)
def test_simulated_leaps_give_the_same_events_as_single_steps(arrivals: list[Arrival]) -> None:
    stepped, _ = play(arrivals, leap=False)
    leapt, _ = play(arrivals, leap=True)
    assert leapt.aborted == stepped.aborted
    assert [(e.kind, e.id) for e in leapt.events] == [(e.kind, e.id) for e in stepped.events]
    assert [e.at for e in leapt.events] == pytest.approx([e.at for e in stepped.events], rel=1e-9)


@given(ARRIVALS)
def test_simulated_replica_agrees_with_the_plain_reference(arrivals: list[Arrival]) -> None:
    run, _ = play(arrivals, PAID, leap=True)
    reference = Reference(PAID)
    for now, id, request in calls_of(arrivals):
        reference.until(now)
        if request is not None:
            reference.add(request, now)
        else:
            reference.abort(id)
    reference.until(FOREVER)
    # Within one step the order of ends is free: the reference goes by arrival, the engine by place in its heap.
    key = [(round(e.at, 6), e.kind, e.id) for e in run.events]
    assert sorted(key) == sorted((round(e.at, 6), e.kind, e.id) for e in reference.events)


@given(ARRIVALS)
def test_simulated_events_are_in_order_of_time(arrivals: list[Arrival]) -> None:
    run, _ = play(arrivals, leap=True)
    times = [event.at for event in run.events]
    assert times == sorted(times)


def test_a_step_of_a_simulated_engine_takes_what_its_profile_says() -> None:
    replica = SimulatedReplica(TINY)
    replica.add(EngineRequest(0, prompt_tokens=10, output_tokens=3), 5.0)
    assert replica.step_at() == pytest.approx(5 + 1 + 10 * 0.1)
    assert [e.kind for e in replica.step().events] == [ReplicaEventKind.FIRST_TOKEN]
    assert replica.step_at() == pytest.approx(7 + 1 + 0.01 + 10 * 0.001)
    assert replica.next_at() == pytest.approx(7 + 2 * 1.01 + (10 + 11) * 0.001)


def test_a_long_prompt_is_read_in_chunks_beside_the_decodes() -> None:
    replica = SimulatedReplica(TINY)
    replica.add(EngineRequest(0, 4, 20), 0.0)
    replica.step()
    replica.add(EngineRequest(1, 40, 1), replica.step_at() - 0.5)
    replica.step()
    ends = []
    for _ in range(3):
        began = replica.step_at()
        ends.append(replica.step())
        assert began == ends[-1].at
    assert [step.tokens for step in ends] == [[0], [0], [0, 1]]  # 15 + 15 + 10 tokens of prompt, one decode each


def test_no_request_overtakes_another_that_waits() -> None:
    replica = SimulatedReplica(replace(TINY, max_num_seqs=1))
    for id in range(3):
        replica.add(EngineRequest(id, 1, 2), 0.0)
    assert (replica.running, replica.waiting) == (1, 2)
    assert [e.id for e in replica.advance(FOREVER) if e.kind is ReplicaEventKind.FINISHED] == [0, 1, 2]


def test_the_latest_arrival_is_preempted_and_finishes_all_the_same() -> None:
    replica = SimulatedReplica(TINY)
    for id in range(3):
        replica.add(EngineRequest(id, 30, 30), 0.0)
    events = replica.advance(FOREVER)
    preempted = [e.id for e in events if e.kind is ReplicaEventKind.PREEMPTED]
    assert preempted[0] == 2
    assert 0 not in preempted
    assert replica.preemptions_total == len(preempted)
    assert [e.id for e in events if e.kind is ReplicaEventKind.FINISHED] == [0, 1, 2]
    assert [e.id for e in events if e.kind is ReplicaEventKind.FIRST_TOKEN] == [0, 1, 2]


def test_simulated_abort_frees_slot_and_cache_at_once_for_the_next_request() -> None:
    replica = SimulatedReplica(replace(TINY, max_num_seqs=1))
    replica.add(EngineRequest(0, 16, 40), 0.0)
    replica.add(EngineRequest(1, 16, 2), 0.0)
    replica.advance(10.0)
    assert replica.kv_fraction > 0
    assert replica.abort(0, 10.0)
    assert (replica.running, replica.kv_fraction) == (0, 0)
    assert not replica.abort(0, 10.0)
    assert [e.id for e in replica.advance(FOREVER) if e.kind is ReplicaEventKind.FINISHED] == [1]


def test_progress_can_be_read_within_a_simulated_leap_without_changing_it() -> None:
    stepped, leapt = SimulatedReplica(TINY), SimulatedReplica(TINY)
    for replica in (stepped, leapt):
        replica.add(EngineRequest(0, 8, 32), 0.0)
        replica.step()
    for tokens in range(2, 32):
        at = stepped.step_at()
        stepped.step()
        assert leapt.generated(0, math.nextafter(at, 0)) == tokens - 1
        assert leapt.generated(0, at + 1e-9) == tokens
    assert leapt.next_at() == pytest.approx(stepped.step_at())


@given(
    base_s=st.floats(1e-4, 1.0),
    kv_s=st.floats(0, 1e-3),
    prompt_tokens=st.integers(1, 16),
    began=st.floats(0, 1e6),
)
def test_progress_changes_exactly_at_the_end_of_a_step(
    base_s: float, kv_s: float, prompt_tokens: int, began: float
) -> None:
    replica = SimulatedReplica(replace(TINY, step_base_s=base_s, kv_s_per_token=kv_s))
    replica.add(EngineRequest(0, prompt_tokens, 48), began)
    replica.step()
    for tokens in range(2, 48):
        at = replica.series.end_of(tokens - 1)
        assert replica.generated(0, math.nextafter(at, -math.inf)) == tokens - 1
        assert replica.generated(0, at) == tokens


def test_simultaneous_requests_are_read_in_one_step() -> None:
    replica = SimulatedReplica(TINY)
    for id in range(2):
        replica.add(EngineRequest(id, 5, 4), 3.0)
    assert replica.step_at() == pytest.approx(3.0 + 1 + 10 * 0.1)
    assert replica.step().tokens == [0, 1]


def test_the_cost_of_a_sequence_falls_into_the_step_in_which_its_prompt_begins() -> None:
    replica = SimulatedReplica(PAID)
    replica.add(EngineRequest(0, 20, 4), 0.0)
    assert replica.step_at() == pytest.approx(1 + 0.2 + 16 * 0.1)
    began = replica.step().at
    assert replica.step_at() - began == pytest.approx(1 + 4 * 0.1 + 16 * 0.001)


def test_a_step_reads_no_more_than_its_budget() -> None:
    replica = SimulatedReplica(TINY)
    replica.add(EngineRequest(0, 40, 2), 0.0)
    replica.add(EngineRequest(1, 10, 2), 0.0)
    for _ in range(2):
        assert (replica.running, replica.waiting) == (1, 1)
        began = replica.step_at()
        replica.step()
    assert replica.step_at() - began == pytest.approx(1 + 16 * 0.1 + 32 * 0.001)  # 8 of each


def test_a_slower_engine_takes_longer_from_the_next_step_on() -> None:
    replica = SimulatedReplica(TINY)
    replica.add(EngineRequest(0, 10, 5), 0.0)
    replica.slow(3.0, 1.0)
    assert replica.step_at() == pytest.approx(2.0)
    replica.step()
    assert replica.step_at() == pytest.approx(2.0 + 3 * 1.02)
    assert replica.next_at() == pytest.approx(2.0 + 3 * (4 * 1.01 + (10 + 11 + 12 + 13) * 0.001))


@pytest.mark.parametrize("request_", [EngineRequest(0, 0, 1), EngineRequest(0, 1, -1), EngineRequest(0, 60, 5)])
def test_request_larger_than_the_kv_cache_is_refused(request_: EngineRequest) -> None:
    with pytest.raises(ValueError, match="tokens"):
        SimulatedReplica(TINY).add(request_, 0.0)


def test_engine_request_with_a_taken_id_is_refused() -> None:
    replica = SimulatedReplica(TINY)
    replica.add(EngineRequest(0, 1, 1), 0.0)
    with pytest.raises(ValueError, match="already here"):
        replica.add(EngineRequest(0, 1, 1), 0.0)


def test_simulated_replica_raises_if_due_events_were_not_processed() -> None:
    replica = SimulatedReplica(TINY)
    replica.add(EngineRequest(0, 1, 1), 0.0)
    with pytest.raises(ValueError, match="advance first"):
        replica.abort(0, 100.0)


@pytest.mark.parametrize(
    "change",
    [
        {"max_batched_tokens": 4},
        {"max_num_seqs": 0},
        {"kv_capacity_tokens": 63},
        {"step_base_s": 0.0},
        {"kv_s_per_token": -1.0},
    ],
)
def test_engine_profile_that_could_deadlock_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="tiny"):
        replace(TINY, **change)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_serves_its_longest_prompt(name: str) -> None:
    profile = PROFILES[name]
    replica = SimulatedReplica(profile)
    replica.add(EngineRequest(0, profile.max_model_len - 8, 8), 0.0)
    assert [e.kind for e in replica.advance(FOREVER)] == [ReplicaEventKind.FIRST_TOKEN, ReplicaEventKind.FINISHED]
    assert profile.name == name
