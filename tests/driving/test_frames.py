"""Values arrive at another process as they were."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core.history import EarlyRefusal, Origin
from gateway.core.request import Affinity, Endpoint, Prefix, Request
from gateway.core.results import AttemptOutcome, AttemptResult, HedgeResult, Outcome, Reason, Record, RunningAttempt
from gateway.core.sessions import Session, StoredResponse
from gateway.core.slo import Objective, Slo
from gateway.driving import frames
from gateway.driving.channel import Channel
from gateway.driving.policy_bytes import policy_from_bytes, to_bytes
from gateway.policy.load import load
from tests.core.made import a_request, policy, pool, tier

POLICIES = sorted((Path(__file__).parents[2] / "policies").glob("*.yaml"))
RULES = policy(pool("p", "r1", "r2"), tier("std"))


def told(row: object) -> Any:
    """The row as the other process decodes it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(row))


def plain(value: object, *left_out: str) -> Mapping[str, object]:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name not in left_out}  # type: ignore[arg-type]


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_policy_with_its_keys_arrives_as_it_was(path: Path) -> None:
    sent = load(path)
    assert policy_from_bytes(to_bytes(sent)) == sent


def test_request_arrives_with_every_field() -> None:
    affinity = Affinity(
        Prefix((2**64 - 1, 7), (100, 900), 1000, has_media=True), Session("s", 2**63), StoredResponse("r1", 40), "lora"
    )
    sent = Request(
        1 << 41,
        RULES,
        RULES.tiers["std"],
        RULES.models["m"],
        "acme",
        Endpoint.CHAT,
        True,
        1000,
        None,
        64,
        2,
        1200,
        1.25,
        1.5,
        batch=3,
        asked_model="any",
        body_hash=2**64 - 1,
        slo=Slo(ttft=(Objective(0.99, 0.3),)),
        assembled=True,
        affinity=affinity,
        split="m",
        is_token_ids=True,
        fallback_of="big",
        comeback=True,
        truncates=True,
        origin=Origin("client-id", "0123abcd", "00-trace-01"),
    )
    got = frames.request_of(told(frames.request_row(sent, 1)), RULES)
    assert plain(got, "origin") == plain(sent, "origin")
    assert (got.origin.request_id, got.origin.key, got.origin.traceparent) == ("client-id", "0123abcd", "00-trace-01")
    bare = a_request(2, RULES, 0.5)
    assert plain(frames.request_of(told(frames.request_row(bare, 1)), RULES), "origin") == plain(bare, "origin")


def test_result_and_running_attempt_arrive_as_they_were() -> None:
    result = AttemptResult(
        AttemptOutcome.REJECTED, 1, 2, 3, 400, float("inf"), 2**64 - 1, True, 5, 4096, answer_id="chatcmpl-1"
    )
    assert plain(frames.result_of(told(frames.result_row(result)))) == plain(result)
    running = [RunningAttempt(1, "r1", 1.5, None, committed=False), RunningAttempt(2, "r2", None, 2.5, committed=True)]
    assert frames.running_of(told(frames.running_rows(running))) == running


def test_record_and_early_refusal_arrive_as_they_were() -> None:
    request = a_request(7, RULES, 1.0)
    record = Record(
        request, Outcome.TIMEOUT, Reason.TTFT_TIMEOUT, "p", "r1", 0.1, None, 0.02, 3.5, 10, 20, True, False, 2,
        0.25, True, True, True, HedgeResult.WON, True,
    )  # fmt: skip
    assert plain(frames.record_of(told(frames.record_row(record)), request), "history") == plain(record, "history")
    early = EarlyRefusal(1.5, Reason.UNAUTHORIZED.value, "id-1")
    early.param, early.retry_after_s = "model", 2.5
    got = frames.early_of(told(frames.early_row(early)))
    assert (got.at, got.why, got.request_id, got.param, got.retry_after_s) == (
        1.5,
        "unauthorized",
        "id-1",
        "model",
        2.5,
    )


async def test_messages_of_any_size_arrive_whole_and_in_order() -> None:
    loop = asyncio.get_running_loop()
    got: list[list[object]] = []
    sender_ended, receiver_ended = asyncio.Event(), asyncio.Event()
    ours, theirs = socket.socketpair()
    sender = Channel(loop, lambda _: None, sender_ended.set)
    receiver = Channel(loop, got.extend, receiver_ended.set)
    sent = [[number, "x" * (number * 997 % 200_000)] for number in range(300)]
    await loop.create_unix_connection(lambda: sender, sock=ours)
    for frame in sent[:150]:
        sender.tell(frame)
    await loop.create_unix_connection(lambda: receiver, sock=theirs)
    for frame in sent[150:]:
        sender.tell(frame)
    sender.close()
    await receiver_ended.wait()
    await sender_ended.wait()
    assert got == sent
