"""One of four replicas that answers everything at once with 404: clients see next to none of it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from time import monotonic

from gateway.core.snapshot import ReplicaState

from .answers import recorded
from .capture import Answer, Capture, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat

NO_MODEL = b'{"error":{"message":"The model does not exist.","type":"NotFoundError","code":404}}'
LEARNING, AFTER = 60, 200


async def test_clients_see_next_to_none_of_the_404_of_one_replica_of_four(
    gateway: GatewayFactory, connect: Connect
) -> None:
    useful = await recorded(CHAT, stream=False)
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Capture()) for _ in range(4)]
        for replica in replicas[1:]:
            replica.answer = lambda call: Answer(useful)
        replicas[0].answer = lambda call: Answer(whole(NO_MODEL, "404 Not Found"))
        gw = await gateway(rules(*(replica.url for replica in replicas)))
        client = await connect(gw.url)
        statuses = [(await client.ask(chat())).status for _ in range(LEARNING + AFTER)]
        assert set(statuses) <= {200, 404}
        assert statuses[LEARNING:].count(404) <= 0.02 * AFTER
        assert len(replicas[0].calls) < 0.4 * len(statuses)
        (pool,) = gw.controller.snapshot(monotonic()).pools
        assert ReplicaState.DOWN not in [replica.state for replica in pool.replicas]
        assert [replica.failures for replica in pool.replicas] == [0] * 4
