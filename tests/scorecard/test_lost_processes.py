"""Processes of `tailgate serve --workers 2` end while others are replaced, or while the system has no room for more."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from .capture import DONE, LAST_CHUNK, USAGE, Capture, token
from .conftest import Connect
from .policies import rules
from .process import Serving
from .raw import chat
from .test_several_processes import begins, begun, deciders_of, ends, go_on, in_flight, seen, two_relays
from .waiting import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds processes and files in /proc")


def numbers(state: dict[str, Any]) -> list[int]:
    return [relay["number"] for relay in state["relays"] if relay["pid"]]


@contextmanager
def without_files(served: Serving) -> Iterator[None]:
    """The supervisor can open no more files meanwhile."""
    pid = served.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def test_relay_that_is_killed_while_another_is_replaced_gets_one_successor(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = begins
    async with two_relays(tmp_path, rules(capture.url)) as served:
        old = numbers(await seen(served, lambda state: len(numbers(state)) == 2))
        streams = await begun(connect, served.url, 1)  # keeps the first relay from its end
        served.signal(signal.SIGUSR2)
        state = await seen(served, lambda state: max(numbers(state), default=0) > max(old))
        (pid,) = [relay["pid"] for relay in state["relays"] if not relay["requests"] and relay["number"] in old]
        os.kill(pid, signal.SIGKILL)
        await seen(served, lambda state: len(set(numbers(state)) - set(old)) == 2)
        go_on(capture)
        assert await ends(streams[0])
        await until(lambda: b"all processes are replaced\n" in served.written, timeout_s=60)
        state = await seen(served, lambda state: len(numbers(state)) >= 2)
        assert len(state["relays"]) == 2
        assert not set(old) & set(numbers(state))


async def test_decider_that_is_killed_at_the_end_of_a_replacement_gets_one_successor(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = begins
    async with two_relays(tmp_path, rules(capture.url)) as served:
        old = numbers(await seen(served, lambda state: len(numbers(state)) == 2))
        streams = [(await begun(connect, served.url, 1))[0] for _ in old]  # one at each relay
        served.signal(signal.SIGUSR2)
        await seen(served, lambda state: max(numbers(state), default=0) > max(old))
        capture.calls[0].send(token("two", "stop") + USAGE + DONE + LAST_CHUNK)
        assert await ends(streams[0])
        await seen(served, lambda state: len(set(numbers(state)) - set(old)) == 2)
        with without_files(served):
            for pid in deciders_of(served):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: b"the next decider cannot begin" in served.written, timeout_s=60)
            capture.calls[1].send(token("two", "stop") + USAGE + DONE + LAST_CHUNK)
            assert await ends(streams[1])
        await until(lambda: b"all processes are replaced\n" in served.written, timeout_s=60)
        await seen(served, lambda state: len(numbers(state)) == 2 and not in_flight(state))
        assert served.written.count(b"another decider serves") == 1
        assert b"cannot listen" not in served.written
        client = await connect(served.url)
        assert (await client.ask(chat())).status == 200


async def test_successor_of_a_decider_keeps_the_policy_in_force_while_the_file_is_wrong(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    file = tmp_path / "policy.yaml"
    async with two_relays(tmp_path, rules(capture.url)) as served:
        await seen(served, lambda state: len(numbers(state)) == 2)
        file.write_text(rules(capture.url, slots=7))
        await seen(served, lambda state: state["policy"]["generation"] and state["pools"][0]["slots"] == 7)
        file.write_text("kind: Policy\npools: 7\n")
        await until(lambda: b"policy not reloaded, the last good one stays in force: " in served.written)
        os.kill(deciders_of(served)[0], signal.SIGKILL)
        await until(lambda: b"another decider serves" in served.written, timeout_s=60)
        state = await seen(served, lambda state: len(numbers(state)) == 2)
        assert state["pools"][0]["slots"] == 7
        assert b"policy not loaded, the last good one stays in force: " in served.written
        assert (await (await connect(served.url)).ask(chat())).status == 200
        file.write_text(rules(capture.url, slots=9))
        await seen(served, lambda state: state["pools"] and state["pools"][0]["slots"] == 9)


async def test_successor_of_a_decider_keeps_the_token_whose_file_is_gone(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    async with two_relays(tmp_path, rules(capture.url, pool=f"api_key_file: {file}")) as served:
        await seen(served, lambda state: len(numbers(state)) == 2)
        file.write_text("second")
        await until(lambda: b"is in force: the same file, with other replicas or keys" in served.written)
        file.unlink()
        await until(lambda: b"token cannot be read" in served.written)
        os.kill(deciders_of(served)[0], signal.SIGKILL)
        await until(lambda: b"another decider serves" in served.written, timeout_s=60)
        await seen(served, lambda state: len(numbers(state)) == 2)
        assert (await (await connect(served.url)).ask(chat())).status == 200
        assert capture.calls[-1].header("authorization") == ["Bearer second"]
        file.write_text("third")
        await until(lambda: served.written.count(b"the same file, with other replicas or keys") == 2)
        unread = served.written.count(b"token cannot be read")
        file.unlink()
        await until(lambda: served.written.count(b"token cannot be read") > unread)
        assert (await (await connect(served.url)).ask(chat())).status == 200
        assert capture.calls[-1].header("authorization") == ["Bearer third"]


async def test_processes_that_cannot_be_started_for_want_of_files_are_started_once_there_are_some(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    async with two_relays(tmp_path, rules(capture.url)) as served:
        state = await seen(served, lambda state: len(numbers(state)) == 2)
        await until(lambda: len(deciders_of(served)) == 2)
        with without_files(served):
            os.kill(state["relays"][0]["pid"], signal.SIGKILL)
            for pid in deciders_of(served):
                os.kill(pid, signal.SIGKILL)
            for what in (b"decider", b"relay"):
                text = b"the next %s cannot begin: the system gives it no process: Too many open files" % what
                await until(lambda text=text: text in served.written, timeout_s=60)
        await seen(served, lambda state: len(numbers(state)) == 2)
        client = await connect(served.url)
        assert (await client.ask(chat())).status == 200


async def test_connections_wait_while_the_supervisor_can_open_no_file_and_the_log_stays_short(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    refused = b"a connection could not be accepted: Too many open files"
    async with two_relays(tmp_path, rules(capture.url)) as served:
        known = await connect(served.url)
        assert (await known.ask(chat())).status == 200
        with without_files(served):
            began = monotonic()
            late = await connect(served.url)
            late.send(chat())
            await until(lambda: refused in served.written)
            for _ in range(20):
                assert (await known.ask(chat())).status == 200
            assert served.written.count(refused) <= 1 + monotonic() - began
        assert (await late.response()).status == 200


async def test_clients_wait_while_no_relay_serves(tmp_path: Path, capture: Capture, connect: Connect) -> None:
    async with two_relays(tmp_path, rules(capture.url)) as served:
        state = await seen(served, lambda state: len(numbers(state)) == 2)
        for relay in state["relays"]:
            os.kill(relay["pid"], signal.SIGKILL)
        await until(lambda: served.written.count(b"has ended with status") == 2)
        client = await connect(served.url)
        assert (await client.ask(chat())).status == 200


async def test_seats_of_a_relay_that_hung_and_was_killed_are_free(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = begins
    async with two_relays(tmp_path, rules(capture.url, tier="timeouts: {idle: 1s}")) as served:
        state = await seen(served, lambda state: len(numbers(state)) == 2)
        await begun(connect, served.url, 6)
        pid = state["relays"][0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        await seen(served, lambda state: in_flight(state) == 3)  # those of the other; this one was told to end its own
        os.kill(pid, signal.SIGKILL)
        await seen(served, lambda state: not in_flight(state))


async def test_decider_that_is_killed_during_the_drain_gets_a_successor(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = begins
    async with two_relays(tmp_path, rules(capture.url, slots=1)) as served:
        await seen(served, lambda state: len(numbers(state)) == 2)
        (stream,) = await begun(connect, served.url, 1)
        waits = await connect(served.url)
        waits.send(chat())
        await seen(served, lambda state: sum(pool["queued"] for pool in state["pools"]) == 1)
        served.signal(signal.SIGTERM)
        await until(lambda: b"draining: at most" in served.written)
        for pid in deciders_of(served):
            os.kill(pid, signal.SIGKILL)
        await until(lambda: b"another decider serves" in served.written, timeout_s=60)
        go_on(capture)
        assert await ends(stream)
        assert (await waits.response()).status == 200
        assert await served.exit_code(60) == 0
