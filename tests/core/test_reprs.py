"""`repr` of a replica, a pool and a request, for debuggers and tracebacks."""

from __future__ import annotations

import random

from gateway.core.controller import Controller
from gateway.core.results import AttemptOutcome, AttemptResult, Reason

from .made import a_request, policy, pool, tier

RULES = policy(pool("p", "r1", "r2", slots=2), tier("std"))


def busy() -> Controller:
    """Request 1 runs at one replica, 2 at the other, 3 and 4 at either; 5 waits."""
    controller = Controller(RULES, random.Random(1))
    for number in range(1, 6):
        controller.arrive(a_request(number, RULES, 0.0, prompt=100), 0.0)
    return controller


def test_repr_of_a_replica_says_name_state_slots_and_unread_tokens() -> None:
    controller = busy()
    replica = controller.state.fleet.replica("r1")
    assert replica is not None
    unread = replica.unprefilled_tokens
    assert unread > 0
    assert repr(replica) == f"<Replica r1, up, 2 in flight of 2 slots, {unread} tokens unread>"
    controller.drain("r1", True, 0.0)
    assert repr(replica).startswith("<Replica r1, drained, 2 in flight of 0 slots, ")


def test_repr_of_a_pool_says_its_load_its_queue_and_its_replicas() -> None:
    fleet = busy().state.fleet
    there, first, second = fleet.pool("p"), fleet.replica("r1"), fleet.replica("r2")
    assert repr(there) == f"<Pool p, 4 in flight of 4 slots, 1 queued, replicas [{first!r}, {second!r}]>"


def test_repr_of_a_request_shows_tier_pool_and_progress() -> None:
    controller = busy()
    first, last = (controller.state.requests[number] for number in (1, 5))
    at = first.open[0].replica.spec.name
    assert repr(last) == "<RequestState 5, tier std, pool p, waiting, open attempts: none>"
    assert repr(first) == f"<RequestState 1, tier std, pool p, dispatched, open attempts: 1 at {at}>"
    controller.first_token(1, 0.1)
    assert repr(first) == f"<RequestState 1, tier std, pool p, committed to attempt 1, open attempts: 1 at {at}>"
    controller.leave(1, 0.2, Reason.CLIENT_GONE)
    assert repr(first) == f"<RequestState 1, tier std, pool p, abandoned (client-gone), open attempts: 1 at {at}>"
    controller.finish(1, AttemptResult(AttemptOutcome.CANCELLED), 0.3)
    assert repr(first) == "<RequestState 1, tier std, pool p, abandoned (client-gone), open attempts: none>"
    assert "acme" not in repr(first)
