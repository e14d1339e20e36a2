"""Hot reload: a valid policy is passed on, an invalid one leaves the last good policy in force."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.core.policy import Policy
from gateway.policy import PolicyError, PolicyErrors, load
from gateway.policy.watch import PolicyWatcher

from .sample import SAMPLE

DEADLINE_S = 20.0
NEVER_S = 3600.0


class Heard:
    """The reports of a watcher, in order."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Policy | PolicyErrors] = asyncio.Queue()

    def __call__(self, said: Policy | PolicyErrors) -> None:
        self.queue.put_nowait(said)

    async def next(self) -> Policy | PolicyErrors:
        return await asyncio.wait_for(self.queue.get(), DEADLINE_S)


def sample(slots: int | str) -> str:
    return SAMPLE.replace("slots: 8", f"slots: {slots}")


def slots(policy: Policy | PolicyErrors) -> int | None:
    assert isinstance(policy, Policy)
    return policy.pools["short"].slots


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(sample(1))
    return tmp_path / "policy.yaml"


@pytest.fixture
def heard() -> Heard:
    return Heard()


def watcher(path: Path, heard: Heard, poll_s: float = NEVER_S) -> PolicyWatcher:
    return PolicyWatcher(path, load(path), heard, heard, poll_s=poll_s)


@asynccontextmanager
async def running(watcher: PolicyWatcher) -> AsyncIterator[None]:
    task = asyncio.create_task(watcher.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def write(path: Path, text: str) -> None:
    """Change a file in place."""
    path.write_bytes(text.encode())


def replace(path: Path, text: str) -> None:
    """Change a file as editors do: write a new one and move it into place."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


async def test_reload_passes_on_the_new_policy_with_the_next_generation(path: Path, heard: Heard) -> None:
    watch, before = watcher(path, heard), load(path)
    write(path, sample(2))
    assert await watch.reload()
    policy = await heard.next()
    assert isinstance(policy, Policy)
    assert (policy.generation, slots(policy)) == (2, 2)
    assert policy.digest != before.digest


async def test_a_reload_on_demand_counts_even_if_nothing_changed(path: Path, heard: Heard) -> None:
    watch = watcher(path, heard)
    assert await watch.reload()
    assert await watch.reload()
    assert watch.generation == 3


async def test_an_invalid_policy_is_reported_and_the_last_good_one_stays(path: Path, heard: Heard) -> None:
    watch = watcher(path, heard)
    write(path, sample("none"))
    assert not await watch.reload()
    errors = await heard.next()
    assert isinstance(errors, PolicyErrors)
    assert [error.line for error in errors.errors] == [13]
    assert watch.generation == 1


async def test_a_valid_policy_after_an_invalid_one_takes_the_next_generation(path: Path, heard: Heard) -> None:
    watch = watcher(path, heard)
    write(path, sample("none"))
    assert not await watch.reload()
    write(path, sample(3))
    assert await watch.reload()
    assert watch.generation == 2


async def test_a_policy_file_that_is_gone_leaves_the_last_good_policy_in_force(path: Path, heard: Heard) -> None:
    watch = watcher(path, heard)
    os.unlink(path)
    assert not await watch.reload()
    assert "cannot be read" in str(await heard.next())
    assert watch.generation == 1


async def test_the_receiver_of_a_reloaded_policy_may_refuse_it(path: Path, heard: Heard) -> None:
    refusal = PolicyErrors([PolicyError("policy.yaml", 0, "keys", "not here")])

    def refuse(_: Policy) -> None:
        raise refusal

    watch = PolicyWatcher(path, load(path), refuse, heard)
    write(path, sample(2))
    assert not await watch.reload()
    assert await heard.next() is refusal
    assert watch.generation == 1


async def test_simultaneous_reloads_run_one_after_the_other(path: Path, heard: Heard) -> None:
    watch = watcher(path, heard)
    assert all(await asyncio.gather(*(watch.reload() for _ in range(5))))
    said = [await heard.next() for _ in range(5)]
    assert [policy.generation for policy in said if isinstance(policy, Policy)] == [2, 3, 4, 5, 6]


async def test_the_watcher_notices_a_changed_policy_file_at_once(path: Path, heard: Heard) -> None:
    async with running(watcher(path, heard)):
        # The watch begins some time after the task: earlier changes are only found by polling.
        for attempt in range(2, 100):
            replace(path, sample(attempt))
            with suppress(TimeoutError):
                policy = await asyncio.wait_for(heard.queue.get(), 0.3)
                assert slots(policy) == attempt
                return
    pytest.fail("no change was noticed")


async def test_a_policy_change_without_a_file_event_is_found_by_polling(path: Path, heard: Heard) -> None:
    watch = watcher(path, heard, poll_s=0.05)
    replace(path, sample(2))  # before anything watches
    async with running(watch):
        assert slots(await heard.next()) == 2


async def test_invalid_policy_content_is_reported_once(path: Path, heard: Heard) -> None:
    async with running(watcher(path, heard, poll_s=0.05)):
        replace(path, sample("none"))
        assert isinstance(await heard.next(), PolicyErrors)
        replace(path, sample(4))
        policy = await heard.next()
        assert (slots(policy), heard.queue.qsize()) == (4, 0)


async def test_policy_file_that_vanished_is_reloaded_when_it_is_back(path: Path, heard: Heard) -> None:
    async with running(watcher(path, heard, poll_s=0.05)):
        os.unlink(path)
        assert isinstance(await heard.next(), PolicyErrors)
        replace(path, sample(5))
        assert slots(await heard.next()) == 5


async def test_file_with_windows_line_ends_is_not_reloaded_without_a_change(path: Path, heard: Heard) -> None:
    write(path, sample(1).replace("\n", "\r\n"))
    async with running(watcher(path, heard, poll_s=0.02)):
        replace(path.with_name("other.yaml"), "x")
        replace(path, sample(2))
        assert slots(await heard.next()) == 2


async def test_policy_watcher_notices_a_config_map_that_swaps_its_link(tmp_path: Path, heard: Heard) -> None:
    """Kubernetes writes a new folder and moves the link `..data` onto it; `policy.yaml` itself never changes."""

    def publish(version: int) -> None:
        folder = tmp_path / f"..v{version}"
        folder.mkdir()
        (folder / "policy.yaml").write_text(sample(version))
        (tmp_path / "..data_tmp").symlink_to(folder.name)
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")

    publish(1)
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    async with running(watcher(tmp_path / "policy.yaml", heard)):
        for version in range(2, 100):
            publish(version)
            with suppress(TimeoutError):
                assert slots(await asyncio.wait_for(heard.queue.get(), 0.3)) == version
                return
    pytest.fail("no swap was noticed")


async def test_the_watcher_follows_a_link_to_a_policy_file_elsewhere(tmp_path: Path, heard: Heard) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    target = tmp_path / "there" / "real.yaml"
    target.write_text(sample(1))
    link = tmp_path / "here" / "policy.yaml"
    link.symlink_to(target)
    async with running(watcher(link, heard)):
        for attempt in range(2, 100):
            replace(target, sample(attempt))
            with suppress(TimeoutError):
                assert slots(await asyncio.wait_for(heard.queue.get(), 0.3)) == attempt
                return
    pytest.fail("no change was noticed")


async def test_slow_policy_preparation_runs_outside_the_event_loop(path: Path, heard: Heard) -> None:
    """Notes belong to the policy that comes into force."""
    prepared: list[tuple[Policy, int]] = []
    watched = PolicyWatcher(
        path, load(path), heard, heard, prepare=lambda policy: prepared.append((policy, threading.get_ident()))
    )
    assert await watched.reload()
    ((policy, thread),) = prepared
    assert policy is await heard.next()
    assert policy.generation == watched.generation
    assert thread != threading.get_ident()


async def test_policy_whose_preparation_fails_is_refused(path: Path, heard: Heard) -> None:
    def refuse(policy: Policy) -> None:
        raise PolicyErrors([PolicyError(str(path), 0, "models", "no tokenizer")])

    watched = PolicyWatcher(path, load(path), heard, heard, prepare=refuse)
    assert not await watched.reload()
    assert isinstance(await heard.next(), PolicyErrors)


async def test_bug_in_loading_a_policy_keeps_the_last_good_one_and_the_watcher_running(
    path: Path, heard: Heard
) -> None:
    bugs: list[Exception] = []

    def take_on(policy: Policy) -> None:
        if slots(policy) == 2:
            raise RuntimeError("a bug")
        heard(policy)

    watch = PolicyWatcher(path, load(path), take_on, heard, on_bug=bugs.append, poll_s=0.01)
    async with running(watch):
        write(path, sample(2))
        errors = await heard.next()
        assert isinstance(errors, PolicyErrors)
        assert "RuntimeError" in str(errors)
        assert [str(bug) for bug in bugs] == ["a bug"]
        assert watch.generation == 1
        write(path, sample(3))
        assert slots(await heard.next()) == 3
