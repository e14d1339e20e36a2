"""Reads of the process table, and sums over a tree."""

from __future__ import annotations

import os
import socket
import sys
import time

import pytest

from loadtests.processes import (
    Cores,
    Entry,
    Neighbours,
    Usage,
    free_port,
    machine_busy_s,
    on_cores,
    parse_ps,
    parse_stat,
    split_cores,
    tree_usage,
)

STAT = (
    "4242 (a (b) c) S 17 4242 4242 0 -1 4194560 899 12 0 0 150 50 20 30 20 0 3 0 5000 100000000 2500 "
    "18446744073709551615 1 1 0 0 0 0 0 16781312 17642 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0"
)


def test_linux_counts_the_process_and_its_reaped_children() -> None:
    # utime 150, stime 50, cutime 20, cstime 30 ticks; 2500 pages.
    assert parse_stat(STAT, 100, 4096) == Entry(4242, 17, Usage(2.5, 2500 * 4096))


@pytest.mark.parametrize(
    ("time_", "seconds"), [("0:01.50", 1.5), ("12:03.25", 723.25), ("1:00:01", 3601), ("2-01:00:00", 176_400)]
)
def test_ps_times_of_macos_are_parsed(time_: str, seconds: float) -> None:
    assert parse_ps(f" 42  7  2048 {time_}") == Entry(42, 7, Usage(seconds, 2048 * 1024))


def test_process_tree_is_found_in_any_order_of_processes() -> None:
    table = [
        Entry(5, 4, Usage(1.0, 1)),
        Entry(4, 3, Usage(2.0, 2)),
        Entry(3, 1, Usage(4.0, 4)),
        Entry(9, 1, Usage(8.0, 8)),
    ]
    assert tree_usage(3, table) == Usage(7.0, 7)


def test_cpu_time_of_an_ended_process_is_an_error_and_not_0() -> None:
    with pytest.raises(ProcessLookupError, match="77"):
        tree_usage(77, [Entry(78, 77, Usage(1.0, 1))])


def test_cpu_and_memory_of_this_process_are_measured() -> None:
    before, until = tree_usage(os.getpid()), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    after = tree_usage(os.getpid())
    assert after.cpu_s - before.cpu_s >= 0.05
    assert after.rss_bytes > 1_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="cores can only be chosen on Linux")
def test_cpu_cores_are_divided_and_given_back() -> None:
    before = os.sched_getaffinity(0)
    cores = split_cores()
    if len(before) == 1:
        assert cores == Cores(None, None)
        return
    assert cores.proxy is not None
    assert cores.load is not None
    assert (cores.proxy | cores.load, cores.proxy & cores.load) == (before, set())
    with on_cores(cores.proxy):
        assert os.sched_getaffinity(0) == cores.proxy
    assert os.sched_getaffinity(0) == before


def test_neighbour_cpu_use_is_that_of_the_machine_without_our_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, clock, machine = [1.0], [0.0], [100.0]

    class Rusage:
        ru_utime, ru_stime = property(lambda _: ours[0] / 2), 0.0

    monkeypatch.setattr("loadtests.processes.resource.getrusage", lambda who: Rusage())
    monkeypatch.setattr("loadtests.processes.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("loadtests.processes.machine_busy_s", lambda: machine[0])
    monkeypatch.setattr("loadtests.processes.os.cpu_count", lambda: 2)
    neighbours = Neighbours()
    # Ten seconds of two cores: the machine worked for 11 s, this process for 6 of them.
    clock[0], ours[0], machine[0] = 10.0, 7.0, 111.0
    assert neighbours.share() == pytest.approx(0.25)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc/stat")
def test_cpu_time_of_the_machine_is_at_least_that_of_this_process() -> None:
    busy_s = machine_busy_s()
    assert busy_s is not None
    assert busy_s > 0


def test_free_port_is_kept_from_who_asks_for_any_and_open_to_a_server_that_names_it() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(server.getsockname()):
        pass  # create_server sets SO_REUSEADDR, as servers do


def test_free_port_refuses_a_port_that_somebody_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        free_port(server.getsockname()[1])
