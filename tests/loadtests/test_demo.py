"""`make run`, as a user sees it."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli.app import app as tailgate
from gateway.policy import load
from loadtests.demo import Plan, Trouble, check_ports, read_policy
from loadtests.demo_text import overload
from loadtests.ports import POLICY, parser, replica_ports, taken
from loadtests.processes import free_port, process_table

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300.0
NAMES = {"short-1", "short-2", "short-3", "long-1", "gateway"}


class Demo:
    """A running demo, and its output so far."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.text = ""

    async def prints(self, what: str) -> str:
        """Read until a line with `what` in it. Returns that line."""
        assert self.process.stdout is not None
        while raw := await self.process.stdout.readline():
            self.text += raw.decode()
            if what in raw.decode():
                return raw.decode().strip()
        raise AssertionError(f"it ended without a word of {what!r}:\n{self.text}")

    async def ends(self) -> int:
        """Read to the end. Returns the exit status."""
        assert self.process.stdout is not None
        self.text += (await self.process.stdout.read()).decode()
        return await self.process.wait()

    def children(self) -> list[int]:
        """The processes that it started, in order."""
        return sorted(entry.pid for entry in process_table() if entry.parent == self.process.pid)

    def fact(self, name: str) -> str:
        """The rest of the line after `name`."""
        found = re.search(rf"^  {name} +(\S+( m?s\b)?)", self.text, re.MULTILINE)
        assert found, f"nothing is said of {name}:\n{self.text}"
        return found[1]


Start = Callable[..., Coroutine[None, None, Demo]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    demos: list[Demo] = []

    async def start(*options: str) -> Demo:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtests.demo", *options), stdout=PIPE, stderr=STDOUT, cwd=ROOT
        )
        demos.append(Demo(process))
        return demos[-1]

    async with asyncio.timeout(DEADLINE_S):
        yield start
    for demo in demos:
        if demo.process.returncode is None:
            demo.process.terminate()
            await demo.ends()


def alive(pids: list[int]) -> list[int]:
    return [entry.pid for entry in process_table() if entry.pid in pids]


def request_of(line: str) -> httpx.Request:
    """The request of a printed curl line; its body is in the line, or comes from the program before it."""
    program, _, curl = line.rpartition(" | ")
    words = shlex.split(curl)
    assert words[0] == "curl"
    body = words[words.index("-d") + 1]
    if body == "@-":
        python, *arguments = shlex.split(program)
        assert python == "python3"
        body = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True).stdout
    (url,) = (word for word in words if word.startswith("http://"))
    return httpx.Request("POST", url, content=body)


def use_fewer_slots(policy: Path) -> None:
    policy.write_text(policy.read_text().replace("slots: 32", "slots: 8"))


async def test_demo_shows_one_request_serves_its_printed_commands_and_cleans_up(start: Start) -> None:
    demo = await start("--free-ports")
    await demo.prints("Serving until Ctrl-C")
    children = demo.children()
    assert len(children) == len(NAMES)

    assert demo.fact("pool") == "short"
    assert demo.fact("replica") in NAMES
    assert all(demo.fact(name).endswith(unit) for name, unit in (("TTFT", " ms"), ("TPOT", " ms"), ("e2e", " s")))
    assert re.search(r"tokens +\d+ in, 100 out", demo.text)

    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        *answered, fault = [request_of(line) for line in demo.text.splitlines() if "curl " in line]
        streamed, long = await asyncio.gather(*(client.send(request) for request in answered))
        broken = await client.send(fault)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert (long.status_code, long.headers["x-tailgate-pool"]) == (200, "long")
    assert broken.json()["fault"] == "dead"

    use_fewer_slots(Path(demo.fact("policy")))
    await demo.prints("policy generation")
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        state = (await client.get(demo.fact("state"))).json()
        console = await client.get(demo.fact("admin"))
        metrics = await client.get(demo.fact("metrics"))
    assert {replica["name"] for pool in state["pools"] for replica in pool["replicas"]} == NAMES - {"gateway"}
    assert state["pools"][1]["slots"] == 8
    assert console.headers["content-type"].startswith("text/html")
    assert 'tailgate_finished_requests_total{tier="standard"}' in metrics.text

    demo.process.send_signal(signal.SIGINT)
    assert await demo.ends() == 0
    assert alive(children) == []


@pytest.mark.long
async def test_demo_names_a_dead_child_and_ends_the_others(start: Start) -> None:
    demo = await start("--free-ports")
    await demo.prints("Serving until Ctrl-C")
    children = demo.children()
    os.kill(children[0], signal.SIGKILL)
    assert await demo.ends() == 1
    died = re.search(r"^(\S+) was ended by signal 9", demo.text, re.MULTILINE)
    assert died
    assert died[1] in NAMES
    assert alive(children) == []


async def test_signal_during_the_start_of_the_demo_ends_its_processes(start: Start) -> None:
    demo = await start("--free-ports")
    await demo.prints("http://127.0.0.1:")
    children = demo.children()
    assert children
    demo.process.terminate()
    assert await demo.ends() == 0
    assert "Serving" not in demo.text
    assert alive(children) == []


async def test_demo_names_a_taken_port_and_the_remedy(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo = await start("--free-ports", "--port", str(port))
        assert await demo.ends() == 1
    assert f"port {port}, for the API (--port): " in demo.text
    assert f"lsof -nP -iTCP:{port}" in demo.text
    assert "make run ARGS=--free-ports" in demo.text


def test_demo_names_every_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as api, socket.create_server(("127.0.0.1", 0)) as admin:
        ports = [listener.getsockname()[1] for listener in (api, admin)]
        with pytest.raises(Trouble) as trouble:
            check_ports(Plan(*ports, free=True, policy_path=POLICY))
    assert f"port {ports[0]}, for the API" in str(trouble.value)
    assert f"port {ports[1]}, for the admin pages" in str(trouble.value)


def test_port_that_is_asked_for_twice_is_named_before_the_start() -> None:
    port = free_port()
    assert taken(0, 0, []) == ""
    assert taken(port, 0, []) == ""
    twice = taken(port, port, [port]).splitlines()
    assert twice[:-1] == [
        f"port {port}, for the admin pages (--admin-port): it is also for the API (--port)",
        f"port {port}, for a replica (policies/default.yaml): it is also for the API (--port)",
    ]


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
def test_impossible_demo_port_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args([option, "99999"])
    assert f"argument {option}: 99999 is not a port" in capsys.readouterr().err


def test_demo_refuses_a_policy_that_is_broken_or_names_other_machines(tmp_path: Path) -> None:
    policy = tmp_path / "default.yaml"
    policy.write_text(POLICY.read_text().replace("slots: 64", "slots: many"))
    with pytest.raises(Trouble, match=r"pools\.short\.slots: many is not a number of slots"):
        read_policy(policy)
    policy.write_text(POLICY.read_text().replace("127.0.0.1:8104", "10.0.0.1:8104"))
    with pytest.raises(Trouble, match=r"pools\.long: http://10\.0\.0\.1:8104 is not on this machine"):
        read_policy(policy)


def test_demo_uses_the_ports_of_the_policy() -> None:
    urls = [replica.url for pool in load(POLICY).pools.values() for replica in pool.replicas]
    assert urls == [f"http://127.0.0.1:{port}" for port in (8101, 8102, 8103, 8104)]
    assert urls == [f"http://127.0.0.1:{port}" for port in replica_ports(POLICY.read_text())]


def test_make_run_names_a_taken_port_before_it_installs_or_compiles(tmp_path: Path) -> None:
    for name in ("Makefile", "loadtests/__init__.py", "loadtests/ports.py", "policies/default.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # -S: a python without packages, as on a machine where nothing is installed yet
        command = ["make", "run", f"PYTHON={sys.executable} -S", f"ARGS=--free-ports --admin-port {port}"]
        outer = {"PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}  # the last three are those of `make test`
        environment = {name: value for name, value in os.environ.items() if name not in outer}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"port {port}, for the admin pages (--admin-port): Address already in use" in done.stderr
    assert "make run ARGS=--free-ports" in done.stderr
    assert not (tmp_path / ".venv").exists()
    assert done.stdout == ""


def test_overload_command_of_the_demo_can_be_typed(tmp_path: Path) -> None:
    words = shlex.split(overload("http://127.0.0.1:1", POLICY))
    assert Path(words[0]).name == "tailgate"
    done = CliRunner().invoke(tailgate, [*words[1:], "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "cannot be reached" in done.stderr
