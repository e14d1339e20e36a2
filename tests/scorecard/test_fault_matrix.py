"""Every fault of a replica, before and after the begin of its answer, streamed or not: the client's outcome.

Two replicas take turns, and one of them has the fault, so one of two requests meets it. Before the first byte the other
replica may answer instead. After it nobody does, and a broken answer never looks complete.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from loadtests.emulator.faults import FaultKind
from loadtests.emulator.replica import EmulatedReplica

from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import Response, chat
from .state import held
from .waiting import until

POOL = "router: round-robin, health: {failures: 1000000}"
PATIENT = "timeouts: {ttft: 30s, idle: 30s, total: 30s}"
HASTY = {True: "timeouts: {ttft: 700ms, idle: 700ms, total: 30s}", False: "timeouts: {total: 3s}"}
"""Timeouts for streams and for whole answers. Streams have a long total timeout, because a stream that exceeds it is
cut short, not failed. Within the total, even a busy machine sends the request to its replica.
"""
SILENT = (FaultKind.PAUSE, FaultKind.STALL)
MIDWAY = (
    FaultKind.RESET,
    FaultKind.TRUNCATED,
    FaultKind.STALL,
    FaultKind.GARBAGE,
    FaultKind.LONG_LINE,
    FaultKind.SHUTDOWN_LIKE,
)
"""These faults are chosen when the request arrives, and take effect at a certain event."""
ENDING = (FaultKind.PAUSE, FaultKind.DEAD)
"""These faults end an open answer."""
TOKENS = 12
SLOWLY, HARDLY, APART = 0.4, 0.001, 0.002
"""Time scales: an answer is open when the fault strikes; is open for minutes; arrives token by token, since the gateway
would read several tokens before the answer begins."""
Case = tuple[FaultKind, str]
"""A fault, and its variant."""

CASES: list[Case] = [
    *[(kind, "") for kind in FaultKind if kind not in (FaultKind.REFUSE, FaultKind.GARBAGE)],
    (FaultKind.REFUSE, "close"),
    (FaultKind.REFUSE, "reset"),
    (FaultKind.GARBAGE, "http"),
    (FaultKind.GARBAGE, "json"),
]
WHOLE = "whole"
BROKEN_OFF, ERROR, LATE = "502 upstream_truncated", "502 upstream_error", "504 deadline_exceeded"
CUT, CUT_BY_ERROR, CUT_LATE = (f"200, then {code[4:]}" for code in (BROKEN_OFF, ERROR, LATE))
UNREAD = "200, as it came"

# (streamed, whole). Missing faults end well: the other replica answers, or the fault has no effect. An error event and
# an endless line exist only in streams.
BEFORE: dict[Case, tuple[str, str]] = {
    (FaultKind.PAUSE, ""): (LATE, LATE),
    (FaultKind.STALL, ""): (LATE, LATE),
    # The status line has arrived.
    (FaultKind.RESET, ""): (BROKEN_OFF, BROKEN_OFF),
    (FaultKind.TRUNCATED, ""): (BROKEN_OFF, BROKEN_OFF),
    (FaultKind.GARBAGE, "http"): (BROKEN_OFF, BROKEN_OFF),
    (FaultKind.GARBAGE, "json"): (UNREAD, UNREAD),
    (FaultKind.LONG_LINE, ""): (UNREAD, WHOLE),
    (FaultKind.SHUTDOWN_LIKE, ""): (ERROR, WHOLE),
}
AFTER: dict[Case, tuple[str, str]] = {
    (FaultKind.PAUSE, ""): (CUT_LATE, LATE),
    (FaultKind.STALL, ""): (CUT_LATE, LATE),
    # Nothing of a whole answer has arrived when its replica dies.
    (FaultKind.DEAD, ""): (CUT, WHOLE),
    (FaultKind.RESET, ""): (CUT, BROKEN_OFF),
    (FaultKind.TRUNCATED, ""): (CUT, BROKEN_OFF),
    (FaultKind.GARBAGE, "json"): (UNREAD, UNREAD),
    (FaultKind.LONG_LINE, ""): (UNREAD, WHOLE),
    (FaultKind.SHUTDOWN_LIKE, ""): (CUT_BY_ERROR, WHOLE),
}


def told(answer: Response, stream: bool) -> str:
    """A client's outcome, in one or two words."""
    if answer.status != 200:
        return f"{answer.status} {answer.error['code']}"
    assert answer.whole
    try:
        if not stream:
            assert answer.json()["usage"]["completion_tokens"] > 0
            return WHOLE
        *events, last = answer.events
    except json.JSONDecodeError:
        return UNREAD
    if any(isinstance(event, str) for event in events):
        return UNREAD
    if last == "[DONE]":
        return WHOLE
    assert isinstance(last, dict)
    return f"200, then {last['error']['code']}"


def strike(replica: EmulatedReplica, case: Case, after_events: int = 0) -> None:
    kind, how = case
    details: dict[str, object] = {"how": how} if how else {}
    if after_events:
        details["after_events"] = after_events
    replica.fault(kind, **details)


def policy(urls: list[str], case: Case, stream: bool) -> str:
    return rules(*urls, pool=POOL, tier=HASTY[stream] if case[0] in SILENT else PATIENT)


def name(case: Case) -> str:
    return "-".join(part for part in case if part)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("case", CASES, ids=name)
async def test_fault_before_the_answer_has_its_listed_outcome(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, case: Case, stream: bool
) -> None:
    replicas = await emulator(replicas=2)
    gw = await gateway(policy(replicas.urls, case, stream))
    strike(replicas.replicas[0], case)
    content = "Please kill-the-replica now" if case[0] is FaultKind.DIE_ON_MARKER else "Hello"
    said = []
    for _ in range(2):
        client = await connect(gw.url)
        said.append(told(await client.ask(chat(stream=stream, max_tokens=TOKENS, content=content)), stream))
        await client.close()
    expected = BEFORE.get(case, (WHOLE, WHOLE))[not stream]
    assert sorted(said) == sorted([WHOLE, expected])
    replicas.replicas[0].fault(None)
    await until(lambda: not held(gw))


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("case", [case for case in CASES if case != (FaultKind.GARBAGE, "http")], ids=name)
async def test_fault_within_the_answer_has_its_listed_outcome(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, case: Case, stream: bool
) -> None:
    scale = HARDLY if case[0] in ENDING else APART if stream and case[0] in MIDWAY else SLOWLY
    sick = await emulator(time_scale=scale)
    well = await emulator()
    (ill,) = sick.replicas
    gw = await gateway(policy([*sick.urls, *well.urls], case, stream))
    if case[0] in MIDWAY:
        strike(ill, case, after_events=4)
    clients = [await connect(gw.url) for _ in range(2)]
    for client in clients:
        client.send(chat(stream=stream, max_tokens=TOKENS))
    heads = [await client.head() for client in clients] if stream else []
    if case[0] not in MIDWAY:
        if not stream:
            await ill.until(lambda of: of.received_total > 0)
        strike(ill, case)
    if stream:
        bodies = await asyncio.gather(*(client.rest_of_chunks() for client in clients))
        answers = [Response(*head, b"".join(chunks)) for head, chunks in zip(heads, bodies, strict=True)]
    else:
        answers = [await client.response() for client in clients]
    expected = AFTER.get(case, (WHOLE, WHOLE))[not stream]
    assert sorted(told(answer, stream) for answer in answers) == sorted([WHOLE, expected])
    for client in clients:
        await client.close()
    ill.fault(None)
    await until(lambda: not held(gw))
