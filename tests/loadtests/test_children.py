"""Processes that are started together end together."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from loadtests.children import Child, Children

DEADLINE_S = 20.0

SERVES = "import time; print('serving on 7', flush=True); time.sleep(60)"
IS_STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVES}"
HAS_A_CHILD = f"""
import asyncio, sys
from loadtests.children import Children, end_by_sigterm

async def main():
    async with Children(lambda name, line: None) as children:
        child = await children.start("worker", [sys.executable, "-c", {SERVES!r}], "serving on 7")
        await child.ready
        print("the worker is", child.process.pid, flush=True)
        await asyncio.Future()

end_by_sigterm()
asyncio.run(main())
"""
FAILS = "import sys; print('the disk is full'); sys.exit(3)"


@pytest.fixture
async def deadline() -> AsyncIterator[None]:
    async with asyncio.timeout(DEADLINE_S):
        yield


async def start(children: Children, code: str, name: str = "worker") -> Child:
    return await children.start(name, [sys.executable, "-c", code], r"serving on (\d+)")


def gone(child: Child) -> bool:
    """Whether the process is gone; an ended one that was not waited for still exists."""
    try:
        os.kill(child.process.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.usefixtures("deadline")
async def test_child_process_is_ready_when_it_says_so_and_gone_after_the_block() -> None:
    told: list[tuple[str, str]] = []
    async with Children(lambda name, line: told.append((name, line))) as children:
        child = await start(children, SERVES)
        assert (await child.ready)[1] == "7"
        assert not gone(child)
    assert told == [("worker", "serving on 7")]
    assert gone(child)
    assert not children.died.done()


@pytest.mark.usefixtures("deadline")
async def test_child_processes_are_gone_when_the_block_fails() -> None:
    started: list[Child] = []

    async def fail() -> None:
        async with Children(lambda _name, _line: None) as children:
            started.extend([await start(children, SERVES), await start(children, SERVES)])
            await started[0].ready
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert [gone(child) for child in started] == [True, True]


@pytest.mark.usefixtures("deadline")
async def test_child_process_that_ends_by_itself_is_reported_with_its_last_output() -> None:
    async with Children(lambda _name, _line: None) as children:
        await start(children, SERVES)
        await start(children, FAILS, "unlucky")
        died = await children.died
    assert died.how_it_ended == "unlucky exited with status 3\n  the disk is full"


@pytest.mark.usefixtures("deadline")
async def test_child_process_that_does_not_end_is_killed_after_the_grace_time() -> None:
    async with Children(lambda _name, _line: None, grace_s=0.05) as children:
        child = await start(children, IS_STUBBORN)
        await child.ready
    assert gone(child)
    assert child.how_it_ended.startswith("worker was ended by signal 9")


@pytest.mark.usefixtures("deadline")
async def test_process_ended_by_sigterm_ends_its_children() -> None:
    async with Children(lambda _name, _line: None) as children:
        parent = await children.start("parent", [sys.executable, "-c", HAS_A_CHILD], r"the worker is (\d+)")
        worker = int((await parent.ready)[1])
        parent.signal(signal.SIGTERM)
        assert await children.died is parent
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@pytest.mark.usefixtures("deadline")
async def test_killing_the_children_does_not_wait_for_their_grace() -> None:
    async with Children(lambda _name, _line: None, grace_s=3 * DEADLINE_S) as children:
        child = await start(children, IS_STUBBORN)
        await child.ready
        children.kill()
    assert gone(child)


@pytest.mark.usefixtures("deadline")
async def test_child_programs_end_if_one_of_them_cannot_be_started() -> None:
    started: list[Child] = []

    async def fail() -> None:
        async with Children(lambda _name, _line: None) as children:
            started.append(await start(children, SERVES))
            await children.start("nothing", ["/nowhere/at/all"], "")

    with pytest.raises(FileNotFoundError):
        await fail()
    assert gone(started[0])
