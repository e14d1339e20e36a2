"""Request ids and trace context: passed on if harmless, else replaced or dropped."""

from __future__ import annotations

import asyncio
import re

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OWN_ID = re.compile(r"tg-[0-9a-f]+-[0-9a-f]+")
GOOD_IDS = ("a", "req_0123456789", "6f1c2d3e-4b5a-4c6d-8e7f-901234567890", "A.b:C_d-e", "x" * 128)
BAD_IDS = (
    *("x" * 129, "", " ", "a b", "a,b", "a;b", "a/b", "<script>", "a%0d%0aX-Injected:1", "{}", "${jndi:ldap://a}", "'"),
    *(
        '"',
        "a\tb",
        "\xe9",
        "a\x80",
        "\u560d\u560a".encode().decode("latin-1"),
        "../../etc",
        "\\r\\nX-Injected:1",
        "`id`",
    ),
)
BREAKING_IDS = ("a\nX-Injected: 1", "a\rX-Injected: 1", "a\x00b", "a\x1bb", "a\x7f")
BAD_TRACES = (
    *(TRACE.upper(), TRACE + "-more", TRACE[:-1], TRACE + " ", "x", "", TRACE.replace("-", "_"), f"{TRACE}, {TRACE}"),
    *("00-" + "0" * 200, "gg" + TRACE[2:], TRACE[:-2] + "\xff\xff"),
)
BAD_STATES = ("a=b" * 200, "a=\xff", "\x80")


async def test_harmless_request_ids_are_kept_and_others_replaced(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    sent_before: list[str] = []
    for given in (*GOOD_IDS[:1], *GOOD_IDS, *BAD_IDS, *BREAKING_IDS):
        capture.calls.clear()
        client = await connect(gw.url)
        response = await client.ask(chat(f"X-Request-Id: {given}"))
        assert "x-injected" not in response.headers, given
        if given in BREAKING_IDS:
            assert response.status == 400, given
            assert not capture.calls
        answered = response.headers["x-request-id"]
        assert answered == given if given in GOOD_IDS else OWN_ID.fullmatch(answered), given
        for call in capture.calls:
            (sent,) = call.header("x-request-id")
            assert sent.startswith(f"{answered}-")
            sent_before.append(sent)
            assert not call.header("x-injected")
    assert len(set(sent_before)) == len(sent_before), "the same id of two clients is two at a replica"


async def test_generated_request_ids_are_unique(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url))
    clients = await asyncio.gather(*(connect(gw.url) for _ in range(10)))
    ids = [(await client.ask(chat())).headers["x-request-id"] for client in clients for _ in range(10)]
    assert len(set(ids)) == 100


async def test_well_formed_trace_context_is_passed_on(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))

    async def sent(*lines: str) -> tuple[list[str], list[str]]:
        capture.calls.clear()
        client = await connect(gw.url)
        response = await client.ask(chat(*lines))
        assert response.status == 200, lines
        (call,) = capture.calls
        assert not call.header("x-injected")
        return call.header("traceparent"), call.header("tracestate")

    assert await sent(f"traceparent: {TRACE}") == ([TRACE], [])
    assert await sent(f"traceparent: {TRACE}", "tracestate: a=b,c=d") == ([TRACE], ["a=b,c=d"])
    # A list may be split over several lines (W3C Trace Context, 3.3.1).
    assert await sent(f"traceparent: {TRACE}", "tracestate: a=b", "tracestate: c=d") == ([TRACE], ["a=b,c=d"])
    assert await sent("tracestate: a=b") == ([], [])
    assert await sent() == ([], [])
    for trace in BAD_TRACES:
        given, state = await sent(f"traceparent: {trace}", "tracestate: a=b")
        assert (given, state) in (([], []), ([TRACE], ["a=b"])), trace
        assert given == [] or trace.strip() == TRACE
    for bad in BAD_STATES:
        assert await sent(f"traceparent: {TRACE}", f"tracestate: {bad}") == ([TRACE], []), bad


async def test_breaking_trace_context_is_refused(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url))
    for line in (
        f"traceparent: {TRACE}\nX-Injected: 1",
        f"traceparent: {TRACE}\r\n X-Injected: 1",
        f"traceparent: {TRACE}\rX-Injected: 1",
        f"traceparent: {TRACE}\x00",
        "tracestate: a=b\nX-Injected: 1",
    ):
        client = await connect(gw.url)
        assert (await client.ask(chat(line))).status == 400, line
    assert not capture.calls


async def test_repeated_request_id_or_traceparent_is_replaced_by_a_new_one(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    other = TRACE.replace("4bf9", "5bf9")
    for _ in range(2):
        response = await client.ask(
            chat(
                *("X-Request-Id: a", "x-request-id: a", "X-Request-ID: b"),
                *(f"traceparent: {TRACE}", f"Traceparent: {other}", "tracestate: a=b"),
            )
        )
        assert response.status == 200
        call = capture.calls[-1]
        assert OWN_ID.fullmatch(response.headers["x-request-id"])
        assert call.header("traceparent") == call.header("tracestate") == []
