"""The generator against emulated replicas, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from gateway.observe.metrics.lag import EDGES
from gateway.sim.workload.arrivals import Arrival, Poisson
from loadtests.emulator.emulator import Emulator
from loadtests.emulator.replica import EmulatedReplica
from loadtests.replay import pace
from loadtests.replay.again import Told
from loadtests.replay.columns import Columns, read_rows
from loadtests.replay.play import Kept, Now, Plan, Player, play
from loadtests.replay.probe import NoContact, probe
from loadtests.replay.request import Outcome, Request
from loadtests.replay.target import Length, Target
from loadtests.replay.unconnected import OwnLimit
from loadtests.report.figures import report
from loadtests.report.run_file import About, read_run, write_run

ROOT = Path(__file__).resolve().parents[3]
FAST = Plan(lead_s=0.0, warm_connections=1, grace_s=20.0)


@pytest.fixture
async def replica() -> AsyncIterator[EmulatedReplica]:
    async with Emulator(time_scale=50.0, model="m", output_median_tokens=1, output_sigma=0.0) as emulator:
        yield emulator.replicas[0]


def target(replica: EmulatedReplica, length: Length = Length.HIDDEN) -> Target:
    return Target(replica.url, length=length)


def arrivals(count: int, *, stream: bool = True, tokens: int = 5) -> Iterator[Arrival]:
    return (Arrival(0.002 * n, "t", "t-1", "m", 40, tokens, stream) for n in range(count))


async def played(
    traffic: Iterator[Arrival], to: Target, plan: Plan = FAST, stop: asyncio.Event | None = None
) -> list[Request]:
    kept = Kept()
    await play(traffic, to, kept, plan, stop=stop)
    return sorted(kept.requests, key=lambda request: request.number)


async def test_python_program_in_the_loadtesting_guide_runs() -> None:
    section = (ROOT / "docs" / "guides" / "loadtesting.md").read_text().partition("## In a program")[2]
    text = section.partition("```python\n")[2].partition("```")[0]
    async with Emulator(time_scale=50.0, model="default") as emulator:
        for old, new in (("http://127.0.0.1:8080", emulator.replicas[0].url), ("duration_s=10", "duration_s=1")):
            assert old in text
            text = text.replace(old, new)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", text, stdout=PIPE, stderr=PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        out, errors = await process.communicate()
        answered = emulator.replicas[0].received_total
    assert (process.returncode, errors) == (0, b"")
    assert answered > 0
    assert out.startswith(b"%d requests, the slowest took" % answered)


@pytest.mark.parametrize("stream", [True, False])
async def test_replayed_requests_are_answered_and_timed(replica: EmulatedReplica, stream: bool) -> None:
    found = await played(arrivals(30, stream=stream), target(replica))
    assert [request.number for request in found] == list(range(30))
    for request in found:
        assert (request.outcome, request.status, request.tokens) == (Outcome.FINISHED, 200, 5)
        assert request.prompt_tokens == 40
        assert request.late_s >= 0.0
        assert (request.first_s is not None) == stream
        if request.first_s is not None:
            assert request.arrival.at < request.first_s <= request.last_s <= request.ended_s
            assert request.chunks == 4  # the end of the answer is an empty token


async def test_replay_distinguishes_the_outcomes_of_different_errors(replica: EmulatedReplica) -> None:
    wanted: list[Any] = [
        ("status_503", {}, Outcome.SHED),
        ("status_500", {}, Outcome.FAILED),
        ("reset", {"after_events": 2}, Outcome.TRUNCATED),
        ("reset", {"after_bytes": 0}, Outcome.RESET),
        ("truncated", {"after_events": 2}, Outcome.TRUNCATED),
        ("error_200", {}, Outcome.ERROR_EVENT),
        ("shutdown_like", {"after_events": 1}, Outcome.ERROR_EVENT),
        ("garbage", {"how": "http"}, Outcome.NO_HTTP),
        ("garbage", {"how": "json", "after_events": 1}, Outcome.NO_HTTP),
    ]
    for fault, details, outcome in wanted:
        replica.fault(fault, **details)
        (request,) = await played(arrivals(1), target(replica))
        assert request.outcome is outcome, (fault, request.reason)
        assert request.reason


async def test_unreachable_target_is_a_connect_error(replica: EmulatedReplica) -> None:
    replica.fault("refuse")
    with pytest.raises(OSError, match="Connect"):
        await played(arrivals(1), target(replica))
    (request,) = await played(arrivals(1), target(replica), replace(FAST, warm_connections=0))
    assert (request.outcome, request.reason) == (Outcome.CONNECT, "Connection refused")


@pytest.mark.parametrize(("number", "advice"), [(errno.EMFILE, "ulimit -n"), (errno.EADDRNOTAVAIL, "local ports")])
async def test_connection_limit_of_the_tester_is_no_miss_and_ends_the_test(
    replica: EmulatedReplica, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    async def exhausted(*_: object, **__: object) -> None:
        raise OSError(number, "no more")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", exhausted)
    kept = Kept()
    with pytest.raises(OwnLimit, match=advice):
        await play(arrivals(10**6), target(replica), kept, replace(FAST, warm_connections=0, retries=2))
    assert {request.outcome for request in kept.requests} == {Outcome.INTERRUPTED}
    with pytest.raises(OwnLimit, match=advice):
        await play(arrivals(1), target(replica), kept, FAST)
    with pytest.raises(OwnLimit, match=advice):
        await probe(target(replica), next(arrivals(1)), 1)


async def test_tls_error_of_the_target_is_reported() -> None:
    class Plain(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            cast(asyncio.Transport, transport).write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = await asyncio.get_running_loop().create_server(Plain, "127.0.0.1", 0)
    to = Target(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    (request,) = await played(arrivals(1), to, replace(FAST, warm_connections=0))
    server.close()
    assert request.outcome is Outcome.CONNECT
    assert request.reason.startswith("TLS: ")
    assert "permitted" not in request.reason


async def test_request_past_the_client_timeout_is_a_timeout(replica: EmulatedReplica) -> None:
    replica.fault("pause")
    (request,) = await played(arrivals(1), target(replica), replace(FAST, timeout_s=0.1))
    assert request.outcome is Outcome.TIMEOUT


async def test_endless_request_is_unfinished_after_the_grace_time(replica: EmulatedReplica) -> None:
    replica.fault("pause")
    (request,) = await played(arrivals(1), target(replica), replace(FAST, grace_s=0.05))
    assert request.outcome is Outcome.UNFINISHED


async def test_refused_request_is_retried_and_counted_once(replica: EmulatedReplica) -> None:
    replica.fault("status_500", count=1)
    (request,) = await played(arrivals(1), target(replica), replace(FAST, retries=2))
    assert (request.outcome, request.tries) == (Outcome.FINISHED, 2)
    assert request.first_s is not None
    assert request.first_s > 0.37  # half a second, less at most a quarter, since it was due, not since the second try


async def test_request_pausing_before_its_retry_is_still_waited_for(replica: EmulatedReplica) -> None:
    """`settled` is called with those requests, too."""
    replica.fault("status_500", count=1)
    kept = Kept()
    nobody = Player(
        arrivals(1), target(replica), kept, replace(FAST, retries=1), settled=lambda now, under_way: not [*under_way]
    )
    await nobody.play()
    assert [(request.outcome, request.tries) for request in kept.requests] == [(Outcome.FINISHED, 2)]


async def test_run_records_who_obeyed_retry_after(replica: EmulatedReplica, tmp_path: Path) -> None:
    replica.fault("status_503", count=1, retry_after_s=0)
    columns = Columns(tmp_path)
    found = await play(arrivals(1), target(replica), columns, replace(FAST, retries=1))
    columns.close()
    write_run(tmp_path, About("", "", 1, "", None, 0.0, 0.01, "hidden"), found, columns)
    (told,) = read_run(tmp_path).played.told["t"].values()
    assert told == Told(told=1, obeyed=1, admitted=1)


async def test_stop_ends_the_run_and_reports_requests_under_way(replica: EmulatedReplica) -> None:
    replica.fault("pause")
    kept, stop = Kept(), asyncio.Event()
    endless = (Arrival(0.001 * n, "t", "t-1", "m", 40, 5) for n in range(10**9))
    player = Player(endless, target(replica), kept, FAST)
    playing = asyncio.create_task(player.play(stop))
    await replica.until(lambda of: of.received_total >= 5)
    stop.set()
    found = await playing
    assert found.interrupted
    assert found.cpu_s > 0
    assert len(kept.requests) == found.sent >= 5
    assert {request.outcome for request in kept.requests} == {Outcome.INTERRUPTED}


@pytest.mark.parametrize(("warmup_s", "counts"), [(0.0, True), (60.0, False)])
async def test_generator_stall_counts_after_the_last_request_but_not_in_the_warm_up(
    replica: EmulatedReplica, warmup_s: float, counts: bool
) -> None:
    """Waits count also after the last request, while only answers are read, but not in the warm-up."""
    replica.fault("pause")
    stop = asyncio.Event()
    stalled: list[float] = []

    def show(now: Now) -> None:
        if stalled:
            stop.set()
        elif now.sent == 2:
            stalled.append(now.at_s)
            time.sleep(0.3)  # like a stopped process, or one without a processor

    plan = replace(FAST, warmup_s=warmup_s)
    found = await Player(arrivals(2), target(replica), Kept(), plan, show=show).play(stop)
    assert found.interrupted
    assert (sum(found.lag[EDGES.index(0.1) + 1 :]) >= 15) == counts


async def test_a_stall_that_outlasts_the_warm_up_counts(replica: EmulatedReplica) -> None:
    replica.fault("pause")
    stop = asyncio.Event()

    def endless() -> Iterator[Arrival]:
        yield from arrivals(1)
        time.sleep(0.3)  # the second request is prepared before the warm-up ends, and takes beyond its end
        yield from arrivals(10**6)

    player = Player(endless(), target(replica), Kept(), replace(FAST, warmup_s=0.1), show=lambda _: stop.set())
    found = await player.play(stop)
    assert sum(found.lag[EDGES.index(0.1) + 1 :]) >= 15


async def test_generator_reports_its_own_lateness(replica: EmulatedReplica, tmp_path: Path) -> None:
    def slow() -> Iterator[Arrival]:
        for arrival in arrivals(3):
            yield arrival
            time.sleep(0.04)  # while the next one is prepared, which is due 2 ms after this one

    columns = Columns(tmp_path)
    found = await play(slow(), target(replica), columns, FAST)
    columns.close()
    write_run(tmp_path, About("t", "w", 1, "now", 0.01, 0.0, 0.01, "hidden"), found, columns)
    rows = read_rows(tmp_path)
    assert (rows["late_s"][1:] > 0.03).all()
    assert (rows["ttft_s"][1:] > 0.03).all()  # it counts from when a request was due
    assert report(read_run(tmp_path), rows, None)["trusted"] is False


@pytest.mark.parametrize("gives_up", [True, False])
async def test_test_ends_early_if_the_generator_is_too_slow_for_its_traffic(
    replica: EmulatedReplica, monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    monkeypatch.setattr(pace, "BEHIND_S", 0.005)
    monkeypatch.setattr(pace, "CATCH_UP_S", 0.05)

    def slow() -> Iterator[Arrival]:
        for arrival in arrivals(40):
            yield arrival
            time.sleep(0.01)  # while the next one is prepared, which is due 2 ms after this one

    found = await play(slow(), target(replica), Kept(), replace(FAST, gives_up=gives_up))
    assert (found.gave_up, found.interrupted) == (gives_up, gives_up)
    assert (found.sent < 40) is gives_up


async def test_a_closed_loop_waits_for_each_answer(replica: EmulatedReplica) -> None:
    at_once = (Arrival(0.0, "t", "t-1", "m", 40, 5) for _ in range(20))
    kept = Kept()
    found = await play(at_once, target(replica), kept, replace(FAST, clients=2))
    assert len(kept.requests) == 20
    assert found.most_under_way == 2
    assert all(request.late_s == 0.0 for request in kept.requests)


async def test_the_first_contact_learns_how_prompts_are_counted(replica: EmulatedReplica) -> None:
    sizes = await probe(target(replica), next(arrivals(1)), 1)
    assert sizes is not None
    assert (sizes.template, sizes.per_word) == (7.0, 1.0)


async def test_first_contact_with_a_bad_target_says_what_is_wrong(replica: EmulatedReplica) -> None:
    with pytest.raises(NoContact, match=r"answers 404 to the first request; give --model$"):
        await probe(replace(target(replica), model="other"), next(arrivals(1)), 1)
    replica.fault("refuse")
    with pytest.raises(NoContact, match="cannot be reached"):
        await probe(target(replica), next(arrivals(1)), 1)


async def test_the_first_contact_waits_no_longer_than_clients_would_and_says_so() -> None:
    """A server that accepts connections and never answers."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    told: list[str] = []
    async with server:
        assert await probe(Target(url), next(arrivals(1)), 1, told.append, timeout_s=0.02) is None
    (line,) = told
    assert line.startswith(f"{url} did not answer the first request within 0.02 s: the test goes on")


async def test_target_that_redirects_is_refused() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(NoContact, match=f"{url} redirects the first request"):
            await probe(Target(url), next(arrivals(1)), 1)


async def test_rows_hold_the_facts_of_their_requests(replica: EmulatedReplica, tmp_path: Path) -> None:
    columns, kept = Columns(tmp_path), Kept()

    class Both:
        def gap(self, request: Request, gap_s: float, count: int) -> None:
            columns.gap(request, gap_s, count)

        def ended(self, request: Request) -> None:
            columns.ended(request)
            kept.ended(request)

    await play(Poisson(300.0, 0.1, 40, 5, model="m").arrivals(1), target(replica), Both(), FAST)
    columns.close()
    rows = read_rows(tmp_path)
    found = sorted(kept.requests, key=lambda request: request.arrival.at)
    assert len(rows) == len(found) > 10
    assert rows["number"].tolist() == [request.number for request in found]
    assert rows["due_s"].tolist() == [request.arrival.at for request in found]
    assert np.allclose(rows["ttft_s"], [(request.first_s or 0.0) - request.arrival.at for request in found])
    assert np.allclose(rows["e2e_s"], [request.ended_s - request.arrival.at for request in found])
    assert set(rows["output_tokens"].tolist()) == {5}
    # Each answer of four pieces has three gaps.
    assert sum(columns.gaps["default"].counts) == 3 * len(rows)
