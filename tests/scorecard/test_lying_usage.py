"""A replica reports impossible token counts: the answer is served, its tenant is not locked out, the count is noted."""

from __future__ import annotations

import pytest

from gateway.app import Gateway
from gateway.proxy.replica.attempt import HOLD_WHOLE_BYTES
from gateway.wire.answers.oddity import Oddity

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, USAGE, Answer, Call, Capture, chunk, completion, token, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat
from .waiting import until

TOLD = b'"completion_tokens":2'
LIES = (b'"completion_tokens":1000000000000', b'"completion_tokens":9223372036854775807')
NONE = b'"completion_tokens":0'


def answered(lie: bytes, call: Call) -> Answer:
    if b'"stream":true' not in call.body:
        return Answer(whole(completion().replace(TOLD, lie)))
    _, _, usage = USAGE.partition(b"\r\n")
    told = chunk(usage[:-2].replace(TOLD, lie))
    return Answer(STREAM_HEAD + token("Hi") + token(" there", "stop") + told + DONE + LAST_CHUNK)


@pytest.mark.parametrize(
    ("lie", "stream"),
    [*((lie, stream) for lie in LIES for stream in (True, False)), (NONE, True), (NONE, False)],
    ids=["1e12, streamed", "1e12, whole", "2**63-1, streamed", "2**63-1, whole", "0, streamed", "0, whole"],
)
async def test_false_usage_of_a_replica_is_counted_and_not_charged_to_the_tenant(
    gateway: GatewayFactory, capture: Capture, connect: Connect, lie: bytes, stream: bool
) -> None:
    capture.answer = lambda call: answered(lie, call)
    gw = await gateway(rules(capture.url, tier="limits: {tokens: 10000/min}"))
    client = await connect(gw.url)
    for _ in range(3):
        assert (await client.ask(chat(max_tokens=100, stream=stream))).status == 200
    await until(lambda: gw.metrics.oddities.get(("main", _replica(gw), Oddity.USAGE)) == 3)
    assert gw.metrics.lanes["free", "main"].output_tokens[True] == 0
    assert 3 <= gw.metrics.lanes["free", "main"].output_tokens[False] < 300


async def test_usage_of_0_tokens_beside_a_long_answer_is_disbelieved(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    said = completion("x" * (2 * HOLD_WHOLE_BYTES)).replace(TOLD, NONE)
    capture.answer = lambda call: Answer(whole(said))
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    assert (await client.ask(chat())).status == 200
    await until(lambda: gw.metrics.oddities.get(("main", _replica(gw), Oddity.USAGE)) == 1)
    tokens = gw.metrics.lanes["free", "main"].output_tokens
    assert tokens[True] == 0 < tokens[False]


def _replica(gw: Gateway) -> str:
    return gw.handler.policy.pools["main"].replicas[0].name
