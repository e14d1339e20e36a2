"""The engine model's prefix cache: hits cost no prefill, blocks are shared, nothing is lost."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.sim.engine.profiles import DEFAULT
from gateway.sim.engine.replica import SimulatedReplica
from gateway.sim.engine.sequences import EngineRequest, ReplicaEventKind
from gateway.sim.workload.arrivals import BLOCK_TOKENS

SMALL = replace(DEFAULT, max_model_len=8192, kv_capacity_tokens=16_384, max_num_seqs=8)


def request(id: int, *blocks: int, more: int = 100, output: int = 10) -> EngineRequest:
    return EngineRequest(id, BLOCK_TOKENS * len(blocks) + more, output, blocks)


def first_token_s(replica: SimulatedReplica, made: EngineRequest, now: float) -> float:
    """Seconds to its first token, at a replica that is otherwise idle."""
    replica.add(made, now)
    first = now
    while (at := replica.next_at()) < 1e9:
        for event in replica.advance(at):
            if event.kind is ReplicaEventKind.FIRST_TOKEN:
                first = event.at
    return first - now


def test_a_prompt_whose_beginning_is_cached_is_read_sooner() -> None:
    replica = SimulatedReplica(SMALL)
    cold_s = first_token_s(replica, request(1, 1, 2, 3), 0.0)
    warm_s = first_token_s(replica, request(2, 1, 2, 3), 10.0)
    assert warm_s < cold_s - 0.9 * 3 * BLOCK_TOKENS * SMALL.prefill_s_per_token
    assert (replica.cache.queried_tokens, replica.cache.hit_tokens) == (2 * 1636, 3 * BLOCK_TOKENS)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    replica = SimulatedReplica(SMALL)
    for id in (1, 2):
        first_token_s(replica, request(id, 1, 2, more=0), 10.0 * id)
    assert replica.cache.hit_tokens == 2 * BLOCK_TOKENS - SMALL.kv_block_tokens, "and with it all of its block"


def test_the_second_of_two_prompts_in_one_step_finds_the_blocks_of_the_first() -> None:
    replica = SimulatedReplica(SMALL)
    replica.add(request(1, 1, 2), 0.0)
    replica.add(request(2, 1, 2, 3), 0.0)
    hits = {event.id: event.hit_tokens for event in replica.advance(60.0)}
    assert hits == {1: 0, 2: 2 * BLOCK_TOKENS}


def test_simulated_answer_is_cached_for_the_turn_that_repeats_it() -> None:
    replica = SimulatedReplica(SMALL, block_tokens=16)
    replica.add(EngineRequest(1, 40, 41, (1, 2), (3, 4, 5)), 0.0)
    replica.add(EngineRequest(2, 40, 41, (9, 8)), 0.0)
    replica.advance(60.0)
    replica.add(EngineRequest(3, 100, 10, (1, 2, 3, 4, 5, 6)), 100.0)
    replica.add(EngineRequest(4, 100, 10, (9, 8, 7, 6, 5, 4)), 100.0)
    hits = {event.id: event.hit_tokens for event in replica.advance(160.0)}
    assert hits == {3: 5 * 16, 4: 2 * 16}


def test_an_answer_in_a_simulated_engine_takes_room_from_cached_blocks() -> None:
    tight = replace(SMALL, max_model_len=2048, kv_capacity_tokens=2048)
    replica = SimulatedReplica(tight)
    first_token_s(replica, request(1, 1, 2, more=0), 0.0)
    assert replica.cache.match((1, 2)) == 2
    first_token_s(replica, request(2, 3, more=0, output=513), 60.0)
    assert replica.cache.match((1, 2)) == 2
    first_token_s(replica, request(3, 4, more=0, output=514), 120.0)
    assert replica.cache.match((1, 2)) == 0, "its answer takes a third block, and it was not there before the first"


def test_a_preempted_sequence_is_counted_once() -> None:
    tight = replace(SMALL, max_model_len=1024, kv_capacity_tokens=1100)
    replica = SimulatedReplica(tight)
    for id in (1, 2):
        replica.add(request(id, id, more=8, output=400), 0.0)
    replica.advance(60.0)
    assert replica.preemptions_total == 1
    assert replica.cache.queried_tokens == 2 * (BLOCK_TOKENS + 8)


def test_simulated_engine_without_prefix_caching_finds_no_blocks() -> None:
    replica = SimulatedReplica(replace(SMALL, prefix_caching=False))
    for id in (1, 2):
        first_token_s(replica, request(id, 1, 2), 10.0 * id)
    assert replica.cache.hit_tokens == 0


def test_simulated_sequences_share_the_cached_blocks_of_their_beginning() -> None:
    replica = SimulatedReplica(SMALL)
    first_token_s(replica, request(1, *range(14)), 0.0)
    for id in (2, 3, 4):
        replica.add(request(id, *range(14), output=500), 20.0)
    replica.advance(21.0)
    assert replica.running == 3, "by themselves two of them fit"
    assert replica.kv_fraction < 0.6


def test_simulated_prompt_takes_room_from_unused_cached_blocks() -> None:
    replica = SimulatedReplica(SMALL)
    first_token_s(replica, request(1, *range(14)), 0.0)
    first_token_s(replica, request(2, *range(100, 114)), 20.0)
    first_token_s(replica, request(3, *range(200, 214)), 40.0)
    assert replica.cache.match(range(200, 214)) == 14
    assert replica.cache.match(range(14)) < 14


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2000), st.lists(st.integers(0, 2), max_size=10), st.integers(1, 200), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
def test_simulated_cache_never_overflows_and_ends_without_users(
    arrivals: list[tuple[int, list[int], int, bool]],
) -> None:
    replica, now, done = SimulatedReplica(SMALL), 0.0, set[int]()
    for id, (gap_ms, blocks, output, leaves) in enumerate(arrivals):
        now += gap_ms / 1000
        done |= {event.id for event in replica.advance(now) if event.kind is ReplicaEventKind.FINISHED}
        chain = tuple(hash(tuple(blocks[: i + 1])) for i in range(len(blocks)))
        replica.add(EngineRequest(id, BLOCK_TOKENS * len(chain) + 50, output, chain), now)
        if leaves and id:
            replica.abort(id - 1, now)
            done.add(id - 1)
        assert 0.0 <= replica.kv_fraction <= 1.0
    while (at := replica.next_at()) < 1e9:
        done |= {event.id for event in replica.advance(at) if event.kind is ReplicaEventKind.FINISHED}
    assert done == set(range(len(arrivals)))
    assert replica.cache.shared_tokens == 0
    assert replica.kv_fraction == 0.0
    assert replica.cache.in_use([hash((b,)) for b in range(3)]) == 0
