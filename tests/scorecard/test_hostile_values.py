"""JSON from clients and replicas that could break code: the process survives, and no bug is found.

Compiled code differs here: in values of undeclared types, numbers beyond 64 bits, slices whose ends cross, and
recursion without a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest

from gateway.app import Gateway
from gateway.wire.apis.table import API_OF
from tests.wire.bodies import MINIMAL

from .capture import LAST_CHUNK, STREAM_HEAD, Answer, Capture, Then, by_default, chunk, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import MODEL, chat, request

ALL_APIS: Final = "apis: {rerank: true, score: true, pooling: true, classify: true, tokenize: true, detokenize: true}"
NEVER_DOWN: Final = "health: {failures: 1000000, ejection: {mode: off}}"
DEPTHS: Final = (252, 254, 990, 1000, 1023, 100_000)
VALUES: Final = (
    *(b"null", b"true", b"-1", b"0", b"-0.0", b"2.0", b"1e300", b"1e999", b"NaN", b"9" * 5000, b"0.1"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616"),
    *(b'""', b'"', b'"\\ud83d"', b'"\\ude00\\ud83d"', b'"\\u0000"', b'"\xff"', b'"' + b"y" * 70_000 + b'"'),
    *(b"[]", b"{}", b"[null]", b"[[]]", b'{"":{}}', b'{"type":[]}', b'[{"type":"text"}]', b'[{"type":null}]'),
    *(b"[" * depth + b"]" * depth for depth in DEPTHS),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in DEPTHS),
)
CHUNK: Final = b'data: {"model":%b,"choices":[{"index":%b,"delta":%b,"finish_reason":%b}],"usage":%b}\n\n'
WHOLE: Final = b'{"model":%b,"choices":[{"index":%b,"message":%b,"finish_reason":%b}],"usage":%b}'
USUAL: Final = (b'"m"', b"0", b'{"content":"Hi"}', b"null", b"null")
ERRORS: Final = (b'{"error":%b}', b'{"error":{"message":%b}}', b'{"detail":[{"loc":[%b],"msg":"no"}]}', b"%b")


def bodies() -> Iterator[tuple[str, bytes]]:
    """For each API: each value in the place of a field, and inside the longest field, in turn."""
    for endpoint, minimal in MINIMAL.items():
        fields = list(API_OF[endpoint].shape.rules)
        for number, value in enumerate(VALUES):
            name = fields[number % len(fields)]
            known = {**minimal, "model": MODEL}
            known.pop(name, None)
            yield endpoint.value, json.dumps({**known, name: "?"}).encode().replace(b'"?"', value)
            held = next(one for one in known if one != "model") if len(known) > 1 else "model"
            yield (
                endpoint.value,
                json.dumps({**known, held: [{"role": "user", "content": "?"}]}).encode().replace(b'"?"', value),
            )


def answers() -> Iterator[tuple[bool, Answer]]:
    """Each value in each place, streamed or whole."""
    for value in VALUES:
        for place in range(len(USUAL)):
            fields = (*USUAL[:place], value, *USUAL[place + 1 :])
            event = CHUNK % fields
            yield True, Answer(STREAM_HEAD + chunk(event) * 2 + chunk(b"data: [DONE]\n\n") + LAST_CHUNK)
            yield False, Answer(whole(WHOLE % fields))
        for form in ERRORS:
            yield False, Answer(whole(form % value, "400 Bad Request"), Then.CLOSE)
            yield True, Answer(STREAM_HEAD + chunk(b"data: " + form % value + b"\n\n") + LAST_CHUNK)


def found_no_bug(gw: Gateway) -> bool:
    """Check that no callback raised, and that nothing is held."""
    return not any(gw.metrics.bugs.values()) and not gw.driver.under_way


@pytest.mark.parametrize("aggregate", ["false", pytest.param("true", marks=pytest.mark.long)])
async def test_no_value_in_a_request_triggers_a_bug(
    gateway: GatewayFactory, capture: Capture, connect: Connect, aggregate: str
) -> None:
    gw = await gateway(rules(capture.url, tier=f"aggregate: {aggregate}, {ALL_APIS}", pool=NEVER_DOWN))
    client = await connect(gw.url)
    for path, body in bodies():
        answer = await client.ask(request(path, body))
        # 413: too many values. 502: the replica sends a chat answer, which is invalid in other APIs.
        assert (answer.status in (200, 400, 413, 502), found_no_bug(gw)) == (True, True), (path, body[:300], answer)
    assert (await client.ask(chat())).status == 200


@pytest.mark.parametrize("aggregate", ["false", pytest.param("true", marks=pytest.mark.long)])
async def test_no_value_in_an_answer_triggers_a_bug(
    gateway: GatewayFactory, capture: Capture, connect: Connect, aggregate: str
) -> None:
    gw = await gateway(rules(capture.url, tier=f"aggregate: {aggregate}, retry: {{budget: 0%}}", pool=NEVER_DOWN))
    for stream, answer in answers():
        capture.answer = lambda _, answer=answer: answer
        client = await connect(gw.url)
        given = await client.ask(chat(stream=stream))
        assert (given.whole, found_no_bug(gw)) == (True, True), (answer.data[:400], given)
        assert given.reason != "internal"
        await client.close()
    capture.answer = by_default
    client = await connect(gw.url)
    assert (await client.ask(chat())).status == 200
