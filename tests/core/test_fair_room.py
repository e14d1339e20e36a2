"""A full queue does not belong to the tenant that filled it."""

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.queueing.limits import TenantUse
from gateway.core.queueing.tier_queue import TierQueue
from gateway.core.request_state import RequestState
from gateway.core.results import Outcome, Reason

from .made import SHADOW, STEADY, a_request, policy, pool, tier
from .playbook import Story, ended, play, refuse

TENANTS = ("a", "b", "c")
RULES = policy(pool("p", "r1"), tier("std"))


def full(*tenants: str, **bounds: Any) -> Story:
    """The only slot is taken, and the queue is full of requests of these tenants, in this order."""
    story = play(policy(pool("p", "r1", **{"queue_limit": len(tenants), **bounds})))
    story.arrives("running", tenant="other")
    for number, tenant in enumerate(tenants):
        story.after(0.1).arrives(f"{tenant}{number}", tenant=tenant)
    return story.after(0.1).whatever()


def test_tenant_below_its_queue_share_displaces_the_last_request_of_one_above() -> None:
    story = full("greedy", "greedy", "greedy", "greedy")
    story.arrives("m", tenant="modest").expect(
        refuse(Reason.EVICTED, of="greedy3"), ended(Outcome.REFUSED, of="greedy3", why=Reason.EVICTED)
    )
    assert story.pool("p").queued == 4


def test_tenant_with_its_share_of_a_full_queue_is_refused() -> None:
    story = full("greedy", "modest", "greedy", "modest")
    for tenant in ("greedy", "modest"):
        story.arrives(f"{tenant} again", tenant=tenant).expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))


def test_tenant_furthest_above_its_queue_share_loses_a_request() -> None:
    story = full("b", "b", "a", "a", "a", "c")
    story.arrives("d", tenant="d").expect(refuse(Reason.EVICTED, of="a4"), ended(Outcome.REFUSED, of="a4"))


def test_new_tenant_displaces_nobody_if_each_tenant_has_one_request_queued() -> None:
    story = full("a", "b", "c")
    story.arrives("d", tenant="d").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))


def test_queue_shares_of_tenants_are_per_tier() -> None:
    rules = policy(pool("p", "r1", queue_limit=3), tier("std"), tier("like"))
    story = play(rules).arrives("running").whatever()
    for name in ("g1", "g2", "g3"):
        story.arrives(name, tenant="greedy", tier="like")
    story.arrives("m", tenant="modest", tier="std").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))


def test_queued_request_of_a_tier_in_shadow_is_not_displaced_for_another_tenant() -> None:
    shadow = policy(pool("p", "r1", queue_limit=2), tier("std", admission=SHADOW))
    story = play(shadow).arrives("running").arrives("g1", tenant="greedy").arrives("g2", tenant="greedy").whatever()
    story.configured(policy(pool("p", "r1", queue_limit=2), tier("std"))).whatever()
    story.arrives("m", tenant="modest", policy=story.controller.policy)
    story.expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))


def test_queue_bytes_are_shared_by_tenants_and_several_requests_may_be_displaced() -> None:
    story = play(policy(pool("p", "r1", queue_bytes=8000))).arrives("running").whatever()
    for number in range(8):
        story.arrives(f"g{number}", tenant="greedy", body_bytes=1000).after(0.1)
    story.arrives("m", tenant="modest", body_bytes=2500).expect(
        *(said for g in ("g7", "g6", "g5") for said in (refuse(Reason.EVICTED, of=g), ended(Outcome.REFUSED, of=g)))
    )
    assert story.pool("p").queued_bytes == 7500
    story.arrives("too big", tenant="modest", body_bytes=2000).expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))


@pytest.mark.parametrize(
    ("modest_bytes", "greedy_bytes"), [(400, 400), pytest.param(20_000, 60, marks=pytest.mark.long)]
)
def test_tenant_with_few_requests_is_served_beside_one_with_many(modest_bytes: int, greedy_bytes: int) -> None:
    """Closed loop: each client sends its next request as soon as it has an answer, or half a second after a refusal."""
    story = play(policy(pool("p", "r1", slots=4, queue_limit=16)))
    clients = [("greedy", n) for n in range(60)] + [("modest", n) for n in range(2)]
    numbers, due = count(), list[tuple[float, int, str, str]]()
    for tenant, number in clients:
        heappush(due, (0.01 * number, next(numbers), "ask", f"{tenant}"))
    running: set[str] = set()
    seen, offered, served = set[str](), Counter[str](), Counter[str]()
    while due and due[0][0] < 60.0:
        at, _, what, name = heappop(due)
        story.at(at)
        if what == "ask":
            offered[name] += 1
            prompt_bytes = modest_bytes if name == "modest" else greedy_bytes
            story.arrives(f"{name} {next(numbers)}", tenant=name, prompt_bytes=prompt_bytes)
        elif what == "end":
            story.sent(name).first_token(name).finishes(name, output_tokens=10)
            running.discard(name)
        for done in [n for n in story.records if n not in seen]:
            seen.add(done)
            tenant, ok = done.split()[0], story.records[done].outcome is Outcome.OK
            served[tenant] += ok
            heappush(
                due, (story.now + (1.0 if tenant == "modest" else 0.0 if ok else 0.5), next(numbers), "ask", tenant)
            )
        for name, attempts in story.attempts.items():
            if attempts and name not in running and name not in story.records:
                running.add(name)
                heappush(due, (story.now + 0.2, next(numbers), "end", name))
        story.whatever()
    assert offered["modest"] >= 60
    assert served["modest"] >= 0.95 * offered["modest"] - 2, "two may still be waiting"
    assert served["greedy"] < 0.5 * offered["greedy"]


# ---- whatever waits


@STEADY
@given(
    st.lists(st.tuples(st.sampled_from(TENANTS), st.sampled_from([10, 500, 3000])), min_size=1, max_size=40),
    st.integers(1, 12),
    st.sampled_from([3000, 10_000, 10**6]),
)
def test_tenant_within_its_queue_share_is_not_refused_while_another_exceeds_its_own(
    arrivals: list[tuple[str, int]], limit: int, most_bytes: int
) -> None:
    story = play(policy(pool("p", "r1", queue_limit=limit, queue_bytes=most_bytes))).arrives("running").whatever()
    for number, (tenant, size) in enumerate(arrivals):
        name = f"n{number}"
        before = [state for state in story.controller.state.requests.values() if state.waiting]
        story.after(0.01).whatever().arrives(name, tenant=tenant, body_bytes=size)
        held = Counter(state.request.tenant for state in before)
        sizes = Counter[str]()
        for state in before:
            sizes[state.request.tenant] += state.request.body_bytes
        tenants = len({*held, tenant})
        share, byte_share = max(1, len(before) // tenants), sum(sizes.values()) // tenants
        refused = [n for n, record in story.records.items() if record.why in (Reason.QUEUE_FULL, Reason.EVICTED)]
        if name in refused:
            wanted = size - (most_bytes - sum(sizes.values()))
            within = held[tenant] < share and (wanted <= 0 or sizes[tenant] + size <= byte_share)
            if wanted > 0:
                assert not within or sum(max(0, of - byte_share) for of in sizes.values()) < wanted + 3000
            else:
                assert not within or all(of <= share for of in held.values())
        for lost in [
            n for n in refused if n != name and story.records[n].request.id in {state.request.id for state in before}
        ]:
            owner = story.records[lost].request.tenant
            assert owner != tenant
            assert held[owner] > share or sizes[owner] > byte_share, "who makes way had more than its share"
    assert story.pool("p").queued <= limit
    assert story.pool("p").queued_bytes <= most_bytes


def test_queue_counts_of_tenants_are_right_after_requests_leave() -> None:
    queue = TierQueue(RULES.tiers["std"])
    lives = []
    for number in range(6):
        state = RequestState(a_request(number + 1, RULES, float(number), tenant=TENANTS[number % 2], body_bytes=100))
        state.use = TenantUse(state.request.tenant, "std")
        state.deadline = 10.0 + number
        queue.push(state, number + 1, 0.0)
        lives.append(state)
    assert queue.yield_to("c", 100, True, 0) == [lives[4]]
    for state in lives:
        queue.remove(state, 0.0)
    assert queue.yield_to("c", 100, True, 0) == []
