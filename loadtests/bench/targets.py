"""The proxies that are measured: how each is configured and started, and when it is ready."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.answer import BadAnswer
from loadtests.bench.closedloop import first_answer
from loadtests.bench.policy import policy
from loadtests.peers import install
from loadtests.peers.install import FOLDER, Skipped
from loadtests.peers.nginx import nginx_command
from loadtests.processes import free_port, on_cores

READY_S = 60.0
STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class Upstream:
    """The replicas behind every target of a run. `certificate`: of those that speak TLS."""

    ports: tuple[int, ...]
    interval_s: float
    certificate: Path | None = None
    tls: Upstream | None = None
    """The same replicas with TLS; None if it cannot be had here."""


@dataclass(frozen=True, slots=True)
class Running:
    """A target that answers: its port, and the process whose CPU and memory are read, children included."""

    name: str
    port: int
    pid: int


Command = Callable[[int, Upstream, Path], list[str]]
"""A function of (port, upstream, folder for files) that returns the command line of a target. Raises Skipped."""


def _tailgate(port: int, upstream: Upstream, folder: Path) -> list[str]:
    return [sys.executable, "-m", "gateway", *_serve(port, upstream, folder)]


def _tailgate_2(port: int, upstream: Upstream, folder: Path) -> list[str]:
    return [*_tailgate(port, upstream, folder), "--workers", "2"]


def _tailgate_profiled(port: int, upstream: Upstream, folder: Path) -> list[str]:
    launcher = [sys.executable, "-m", "loadtests.bench.profiled", str(folder / "profile")]
    return [*launcher, *_serve(port, upstream, folder)]


def _serve(port: int, upstream: Upstream, folder: Path) -> list[str]:
    # The policy has a folder of its own: tailgate watches it, and nothing else may change there.
    (folder / "policy").mkdir(exist_ok=True)
    written = folder / "policy" / "policy.yaml"
    written.write_text(policy(upstream.ports, upstream.interval_s, upstream.certificate))
    return ["serve", "--policy", str(written), "--port", str(port), "--admin-port", str(free_port())]


def _tailgate_journal(port: int, upstream: Upstream, folder: Path) -> list[str]:
    return [*_tailgate(port, upstream, folder), "--journal", str(folder / "journal")]


def _tailgate_without_records(port: int, upstream: Upstream, folder: Path) -> list[str]:
    return [*_tailgate(port, upstream, folder), "--records", "0"]


def _tailgate_usage(port: int, upstream: Upstream, folder: Path) -> list[str]:
    return [*_tailgate(port, upstream, folder), "--usage", str(folder / "usage.db")]


def _tailgate_traces(share: float) -> Command:
    def command(port: int, upstream: Upstream, folder: Path) -> list[str]:
        collector = f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{upstream.ports[0]}"
        return ["env", collector, *_tailgate(port, upstream, folder), "--traces", str(share)]

    return command


def _tailgate_tls(port: int, upstream: Upstream, folder: Path) -> list[str]:
    if upstream.tls is None:
        raise Skipped("openssl is not installed")
    return _tailgate(port, upstream.tls, folder)


def _vllm_router(port: int, upstream: Upstream, folder: Path) -> list[str]:
    urls = [f"http://127.0.0.1:{replica}" for replica in upstream.ports]
    options = ["--policy", "round_robin", "--worker-startup-check-interval", "1"]
    listen = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    return [str(install.vllm_router()), "--worker-urls", *urls, *options, *listen]


def _nginx(port: int, upstream: Upstream, folder: Path) -> list[str]:
    return nginx_command(port, upstream.ports, folder)


def _floor(port: int, upstream: Upstream, folder: Path) -> list[str]:
    return [sys.executable, "-m", "loadtests.bench.floor", str(port), *map(str, upstream.ports)]


def _naive(port: int, upstream: Upstream, folder: Path) -> list[str]:
    return [sys.executable, "-m", "loadtests.bench.naive", str(port), *map(str, upstream.ports)]


PROFILED = "tailgate-profiled"

TARGETS: dict[str, Command] = {
    "tailgate": _tailgate,
    "tailgate-2": _tailgate_2,
    "tailgate+journal": _tailgate_journal,
    "tailgate-records": _tailgate_without_records,
    "tailgate+tls": _tailgate_tls,
    "tailgate+usage": _tailgate_usage,
    "tailgate+traces-1%": _tailgate_traces(0.01),
    "tailgate+traces": _tailgate_traces(1.0),
    "vllm-router": _vllm_router,
    "nginx": _nginx,
    "python-floor": _floor,
    "fastapi+httpx": _naive,
    PROFILED: _tailgate_profiled,
}


@contextmanager
def running(name: str, upstream: Upstream, cores: frozenset[int] | None) -> Iterator[Running]:
    """Start a target on `cores`, wait until it answers a real request, and stop it in the end. Raises Skipped."""
    folder = FOLDER / "run" / name
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = TARGETS[name](port, upstream, folder)
    log = folder / "log"
    with log.open("wb") as out, on_cores(cores):
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=FOLDER.parent)
    try:
        _until_ready(process, port, log)
        yield Running(name, port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """A target is ready when it answers as the upstream does. Raises Skipped with the end of its log."""
    deadline, last = time.monotonic() + READY_S, "it never listened"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            first_answer(port)
        except (BadAnswer, OSError) as error:
            last = str(error)
            time.sleep(0.1)
        else:
            return
    said: Sequence[str] = log.read_text(errors="replace").strip().splitlines()[-3:]
    fate = f"it exited with {process.returncode}" if process.poll() is not None else f"not ready: {last}"
    raise Skipped(" | ".join([fate, *said]))
