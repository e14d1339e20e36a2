"""Other processes: CPU and memory of a whole tree, cores, and free ports.

Linux is read from /proc (CPU in ticks of 10 ms), macOS from ps. Both count children and threads.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds since the start, and resident bytes now."""

    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the process table."""

    pid: int
    parent: int
    usage: Usage


def parse_stat(line: str, ticks_per_s: int, page_bytes: int) -> Entry:
    """Parse /proc/PID/stat. The name may hold spaces and parentheses: fields are counted from the last parenthesis."""
    pid, rest = line.split(" ", 1)
    fields = rest.rpartition(")")[2].split()
    # proc_pid_stat(5): ppid is field 4, utime to cstime 14-17, rss 24; fields[0] is field 3.
    ticks = sum(int(field) for field in fields[11:15])
    return Entry(int(pid), int(fields[1]), Usage(ticks / ticks_per_s, int(fields[21]) * page_bytes))


def parse_ps(line: str) -> Entry:
    """One line of `ps -axo pid=,ppid=,rss=,time=`: the time is [[days-]hours:]minutes:seconds."""
    pid, parent, kib, time = line.split()
    days, _, clock = time.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    seconds += float(days or 0) * 86_400
    return Entry(int(pid), int(parent), Usage(seconds, int(kib) * 1024))


def process_table() -> list[Entry]:
    """Every process that can be read."""
    if sys.platform == "linux":
        ticks, page = os.sysconf("SC_CLK_TCK"), resource.getpagesize()
        entries = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                entries.append(parse_stat(stat.read_text(), ticks, page))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended during the read
        return entries
    listing = subprocess.run(["ps", "-axo", "pid=,ppid=,rss=,time="], capture_output=True, text=True, check=True)
    return [parse_ps(line) for line in listing.stdout.splitlines()]


def tree_of(root: int, table: list[Entry] | None = None) -> list[Entry]:
    """`root` and its descendants. Raises ProcessLookupError if `root` is gone."""
    table = process_table() if table is None else table
    tree = {root}
    grew = True
    while grew:
        below = {entry.pid for entry in table if entry.parent in tree}
        grew = not below <= tree
        tree |= below
    if not any(entry.pid == root for entry in table):
        raise ProcessLookupError(f"process {root} is gone")
    return [entry for entry in table if entry.pid in tree]


def tree_usage(root: int, table: list[Entry] | None = None) -> Usage:
    """Total usage of `root` and its descendants."""
    usages = [entry.usage for entry in tree_of(root, table)]
    return Usage(sum(usage.cpu_s for usage in usages), sum(usage.rss_bytes for usage in usages))


def command_of(pid: int) -> str:
    """The command line of a process; empty if it is gone."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            return ""
    return subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout


def machine_busy_s() -> float | None:
    """CPU seconds that all processes have used since the start of the machine; None without /proc."""
    if sys.platform != "linux":
        return None
    with open("/proc/stat") as lines:
        # proc(5): user nice system idle iowait irq softirq steal; guests are in user already
        ticks = [int(field) for field in next(lines).split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


class Neighbours:
    """Measures the share of the machine that other processes use, from its creation on: the noise of a run."""

    def __init__(self) -> None:
        self._before = self._others_s()
        self._started_at = time.monotonic()

    def share(self) -> float | None:
        """Share of all cores (0-1) used by other processes: neither this one nor its ended children."""
        now = self._others_s()
        if now is None or self._before is None:
            return None
        elapsed_s = time.monotonic() - self._started_at
        return max(0.0, (now - self._before) / elapsed_s / (os.cpu_count() or 1))

    @staticmethod
    def _others_s() -> float | None:
        busy_s = machine_busy_s()
        ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return None if busy_s is None else busy_s - sum(usage.ru_utime + usage.ru_stime for usage in ours)


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores for the proxy under test, and cores for the load (generator and upstream). None means all cores."""

    proxy: frozenset[int] | None
    load: frozenset[int] | None

    def __str__(self) -> str:
        if self.proxy is None or self.load is None:
            return "nothing is pinned"
        names = [" ".join(map(str, sorted(cores))) for cores in (self.proxy, self.load)]
        return f"the proxy is pinned to core {names[0]}, generator and upstream to {names[1]}"


def split_cores() -> Cores:
    """The last core for the proxy and the others for the load, if there are two and Linux allows the choice."""
    if sys.platform != "linux":
        return Cores(None, None)
    cores = sorted(os.sched_getaffinity(0))
    return Cores(frozenset(cores[-1:]), frozenset(cores[:-1])) if len(cores) > 1 else Cores(None, None)


@contextmanager
def on_cores(cores: frozenset[int] | None) -> Iterator[None]:
    """Processes started inside inherit these cores, from their first thread on."""
    if cores is None or sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def raise_file_limit(wanted: int) -> int:
    """Open files that this process and its children may have from now on: `wanted`, or what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(soft, allowed)


def free_port(wanted: int = 0) -> int:
    """A port of loopback (`wanted`, or any) that the system gives to no other process for a minute.

    A closed connection of the port stays in TIME_WAIT, so a process that asks for any port does not get this one. A
    server that asks for it by number, with SO_REUSEADDR, gets it. Raises OSError if `wanted` is taken.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", wanted))
        listener.listen(1)
        with socket.create_connection(listener.getsockname()):
            listener.accept()[0].close()  # who closes first keeps TIME_WAIT: it must be the port's own end
        port: int = listener.getsockname()[1]
        return port
