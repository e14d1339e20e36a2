"""One of four replicas gives empty answers at once: it gets no more than its share."""

from __future__ import annotations

from contextlib import AsyncExitStack
from time import monotonic

import pytest

from gateway.core.snapshot import ReplicaState

from .answers import recorded
from .capture import Answer, Capture, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat, request

NO_MODEL = b'{"error":{"message":"The model does not exist.","type":"NotFoundError","code":404}}'
PAGE = whole(b"<html><body>Sign in to go on</body></html>")
NOTHING = whole(b"{}")
NO_CHOICE = whole(b'{"object":"chat.completion","choices":[]}')
LEARNING, AFTER = 60, 200
ASKED = {
    "chat": chat(),
    "streamed chat": chat(stream=True),
    "embeddings": request("/v1/embeddings", b'{"model":"default","input":"hi"}'),
}


async def test_clients_see_almost_none_of_the_404s_of_one_odd_replica_of_four(
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


@pytest.mark.parametrize(
    ("asked", "answer"),
    [*((asked, PAGE) for asked in ASKED), ("chat", NOTHING), ("streamed chat", NOTHING), ("chat", NO_CHOICE)],
    ids=[*(f"{asked}, page" for asked in ASKED), "chat, {}", "streamed chat, {}", "chat, no choice"],
)
async def test_replica_that_answers_with_web_pages_or_nothing_gets_less_than_its_share(
    gateway: GatewayFactory, connect: Connect, asked: str, answer: bytes
) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Capture()) for _ in range(4)]
        replicas[0].answer = lambda call: Answer(answer)
        gw = await gateway(rules(*(replica.url for replica in replicas)))
        client = await connect(gw.url)
        for _ in range(LEARNING + AFTER):
            assert (await client.ask(ASKED[asked])).status == 200
        assert len(replicas[0].calls) < 0.12 * (LEARNING + AFTER)
        (pool,) = gw.controller.snapshot(monotonic()).pools
        assert [replica.failures for replica in pool.replicas] == [0] * 4
