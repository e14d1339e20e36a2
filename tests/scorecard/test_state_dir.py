"""`--state-dir`: what a gateway has learned outlives it, and a file that is not its own is left alone."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.app import Gateway
from gateway.driving.state_bytes import line_of, state_from_bytes, with_header
from gateway.driving.state_dir import KEY, StateDir
from gateway.hash_seed import HashSeedError, read_seed, seed_of
from gateway.observe.journal.replay import in_order, replay
from gateway.policy import load_text
from gateway.settings import SettingError, Settings

from .capture import Capture
from .conftest import EmulatorFactory
from .policies import rules
from .process import serving
from .raw import MODEL
from .test_discovered_replicas import OFTEN, publish, targets
from .test_several_processes import deciders_of, seen, two_relays
from .waiting import until


@asynccontextmanager
async def kept(folder: Path, policy: str, **more: Any) -> AsyncIterator[Gateway]:
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, state_dir=folder, **more)
    async with Gateway(settings, load_text(policy, "policy.yaml", {})) as gw:
        yield gw


async def answered(url: str, count: int) -> None:
    """Have this many streamed answers."""
    body = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 20}
    async with httpx.AsyncClient(base_url=url) as client:
        for _ in range(count):
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_gateway_that_starts_again_has_learned_the_same(tmp_path: Path, emulator: EmulatorFactory) -> None:
    fleet = await emulator(replicas=2)
    async with kept(tmp_path, rules(*fleet.urls)) as gw:
        await answered(gw.url, 30)
        (before,) = gw.controller.forecaster.view().pools
        assert before.samples > 0
    async with kept(tmp_path, rules(*fleet.urls)) as gw:
        (after,) = gw.controller.forecaster.view().pools
        assert (after.samples, after.ttft_coefficients) == (before.samples, before.ttft_coefficients)
    assert (tmp_path / "state.jsonl").stat().st_mode & 0o777 == 0o600


async def test_stored_response_is_continued_after_a_restart_where_it_is_stored(
    tmp_path: Path, emulator: EmulatorFactory
) -> None:
    fleet = await emulator(replicas=3, responses_store=True)
    policy = rules(*fleet.urls, pool="router: round-robin", tier="caps: {stored_responses: true}")
    body = {"model": "default", "input": "Hello", "max_output_tokens": 4}
    previous = []
    async with kept(tmp_path, policy) as gw, httpx.AsyncClient(base_url=gw.url) as client:
        for _ in range(4):
            previous.append((await client.post("/v1/responses", json=body)).json()["id"])
    async with kept(tmp_path, policy) as gw, httpx.AsyncClient(base_url=gw.url) as client:
        for each in previous:
            answer = await client.post("/v1/responses", json={**body, "previous_response_id": each})
            assert answer.status_code == 200, answer.text


def samples_in(file: Path) -> int | None:
    """Samples of the pool, as written."""
    memory: Any = state_from_bytes(file.read_bytes()).memory if file.exists() else {}
    return memory["pools"]["main"]["samples"] if memory.get("pools") else None


DAMAGE = {
    "a flipped byte": lambda data: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
    "half of it": lambda data: data[: len(data) // 2],
    "nothing in it": lambda _: b"",
    "another format": lambda data: data.replace(b'"tailgate_state":1', b'"tailgate_state":9'),
    "another program's": lambda _: b"[section]\nkey = value\n",
    "another program's JSON": lambda _: b'{"a": 1}\n',
    "a JSON number": lambda _: b"7\n",
    "no text": lambda _: b"\xff\xfe\n",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
async def test_state_that_cannot_be_read_is_named_and_left_alone(
    tmp_path: Path, emulator: EmulatorFactory, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    fleet = await emulator(replicas=1)
    file = tmp_path / "state.jsonl"
    async with kept(tmp_path, rules(*fleet.urls)) as gw:
        await answered(gw.url, 3)
    file.write_bytes(damaged := damage(file.read_bytes()))
    async with kept(tmp_path, rules(*fleet.urls)) as gw:
        (line,) = [record.message for record in caplog.records if str(file) in record.message]
        assert "starts with nothing learned" in line
        assert not any(pool.samples for pool in gw.controller.forecaster.view().pools)
        await answered(gw.url, 3)
    assert file.read_bytes() == damaged
    file.rename(tmp_path / "damaged")
    async with kept(tmp_path, rules(*fleet.urls)) as gw:
        await answered(gw.url, 3)
    assert state_from_bytes(file.read_bytes()).memory["pools"]


@pytest.mark.parametrize(("key", "known"), [(KEY, 1), (KEY + 1, 0)], ids=["this key", "another key"])
async def test_blocks_of_prompts_that_another_key_hashed_are_left_out(
    tmp_path: Path, emulator: EmulatorFactory, key: int, known: int
) -> None:
    fleet = await emulator(replicas=1)
    (replica,) = load_text(rules(*fleet.urls), "policy.yaml", {}).pools["main"].replicas
    told = {"pool": "main", "url": replica.url, "blocks": [[11, 32, True]]}
    lines = line_of("memory", {"key": key}) + line_of("replicas", {replica.name: told})
    (tmp_path / "state.jsonl").write_bytes(with_header(lines, 1.5))
    async with kept(tmp_path, rules(*fleet.urls)) as gw:
        found = gw.controller.state.fleet.replica(replica.name)
        assert found is not None
        assert len(found.cache) == known


@pytest.mark.parametrize("part", [("responses", [["acme"]]), ("responses", [7]), ("memory", {"at": "x", "pools": {}})])
async def test_gateway_serves_with_a_state_of_another_form(
    tmp_path: Path, emulator: EmulatorFactory, part: tuple[str, Any]
) -> None:
    fleet = await emulator(replicas=1)
    (tmp_path / "state.jsonl").write_bytes(with_header(line_of(*part), 1.5))
    async with kept(tmp_path, rules(*fleet.urls)) as gw:
        await answered(gw.url, 1)


async def test_file_that_is_moved_away_is_replaced_while_the_gateway_runs(
    tmp_path: Path, emulator: EmulatorFactory
) -> None:
    fleet = await emulator(replicas=1)
    file = tmp_path / "state.jsonl"
    file.write_text("something else")
    async with kept(tmp_path, rules(*fleet.urls)):
        file.unlink()
        await until(file.exists)
    assert state_from_bytes(file.read_bytes()).memory


async def test_two_gateways_cannot_use_one_state_directory(tmp_path: Path, emulator: EmulatorFactory) -> None:
    fleet = await emulator(replicas=1)
    async with kept(tmp_path, rules(*fleet.urls)):
        with pytest.raises(SettingError, match="another process uses the state directory"):
            async with kept(tmp_path, rules(*fleet.urls)):
                pass


def test_file_is_no_state_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="is a file: give a directory"):
        StateDir(tmp_path / "file")


def test_write_that_goes_on_while_the_last_one_begins_damages_nothing(tmp_path: Path) -> None:
    directory, data = StateDir(tmp_path), [letter * 100_000 for letter in (b"a", b"b")]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(directory.write, data * 50))
    directory.close()
    assert (tmp_path / "state.jsonl").read_bytes() in data


async def test_state_directory_that_cannot_be_made_is_named(tmp_path: Path, emulator: EmulatorFactory) -> None:
    fleet = await emulator(replicas=1)
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"file/state cannot be used: Not a directory"):
        async with kept(tmp_path / "file" / "state", rules(*fleet.urls)):
            pass


async def test_journal_of_a_gateway_with_state_is_replayed_bit_for_bit(
    tmp_path: Path, emulator: EmulatorFactory
) -> None:
    fleet = await emulator(replicas=2)
    for run in ("first", "second"):
        journal = tmp_path / run
        async with kept(tmp_path / "state", rules(*fleet.urls), journal=journal) as gw:
            await answered(gw.url, 40)
        report = replay(in_order([journal]), lambda _: None)
        assert report.divergence is None
    assert any(orjson.loads(line)[1] == "recall" for line in journal.read_bytes().splitlines()[1:])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
async def test_decider_that_is_killed_hands_its_facts_to_its_successor(
    tmp_path: Path, emulator: EmulatorFactory
) -> None:
    folder = tmp_path / "state"
    file = folder / "state.jsonl"
    fleet = await emulator(replicas=2)
    async with two_relays(tmp_path, rules(*fleet.urls), TAILGATE_STATE_DIR=str(folder)) as served:
        await answered(served.url, 30)
        before = await seen(served, lambda state: state["forecast"]["pools"])
        samples = before["forecast"]["pools"][0]["samples"]
        await until(lambda: samples_in(file) == samples > 0)
        os.kill(deciders_of(served)[0], signal.SIGKILL)
        await answered(served.url, 1)
        state = await seen(served, lambda state: state["forecast"]["pools"])
        assert state["forecast"]["pools"][0]["samples"] >= samples
        assert b"the gateway knows what it had learned" in served.written


@asynccontextmanager
async def finding(folder: Path, later_s: float = 0.0) -> AsyncIterator[Gateway]:
    """A gateway with the replicas of a file, and with state. `later_s`: how much later it is, by its wall clock."""
    policy = rules(pool=f"discover: {{file: {folder}/replicas.json}}, {OFTEN}")
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, state_dir=folder / "state")
    async with Gateway(settings, load_text(policy, "p.yaml", {}), unix_s=lambda: time.time() + later_s) as gw:
        yield gw


def prompts_of(gw: Gateway, name: str) -> object:
    """Prompts that a replica had, as they are remembered."""
    memory: Any = gw.controller.memory_of(name)
    return memory["budget"]["prompts"]["sum"]


@pytest.mark.parametrize(("later_s", "known"), [(3000.0, True), (3700.0, False)], ids=["in time", "after an hour"])
async def test_facts_of_replicas_that_are_found_late_wait_for_them_an_hour_over_restarts(
    tmp_path: Path, emulator: EmulatorFactory, later_s: float, known: bool
) -> None:
    fleet = await emulator(replicas=2)
    names = [url.removeprefix("http://") for url in fleet.urls]
    publish(tmp_path, targets(*fleet.urls))
    async with finding(tmp_path) as gw:
        await until(gw.controller.alive)
        await answered(gw.url, 30)
        gw.driver.drain(names[1], True)
        before = [prompts_of(gw, name) for name in names]
        (pool,) = gw.controller.forecaster.view().pools
    (tmp_path / "replicas.json").unlink()
    for part in (1, 2):
        async with finding(tmp_path, later_s * part / 3) as gw:
            assert gw.finder.reports()[0].error
    async with finding(tmp_path, later_s) as gw:
        publish(tmp_path, targets(*fleet.urls))
        await until(lambda: gw.controller.state.fleet.replica(names[1]) is not None)
        assert [gw.controller.memory_of(name)["drained"] for name in names] == [False, known]
        assert ([prompts_of(gw, name) for name in names] == before) == known
        assert gw.controller.forecaster.view().pools[0].samples == pool.samples
    assert not state_from_bytes((tmp_path / "state" / "state.jsonl").read_bytes()).memory["absent"]


async def homes(url: str, replicas: list[Capture], talks: Iterable[int] = range(8)) -> dict[int, int]:
    """The replica that serves each of some long conversations, asked in this order."""
    found = {}
    async with httpx.AsyncClient(base_url=url) as client:
        for talk in talks:
            before = [len(each.calls) for each in replicas]
            said = [{"role": "user", "content": f"{talk} asks: " + f"question {talk} " * 300}]
            body = {"model": MODEL, "max_tokens": 4, "messages": said}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            (found[talk],) = (i for i, each in enumerate(replicas) if len(each.calls) > before[i])
    return found


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("damaged", [False, True], ids=["kept", "damaged"])
async def test_conversations_keep_their_replicas_over_a_restart_unless_the_seed_is_damaged(
    tmp_path: Path, workers: str, damaged: bool
) -> None:
    state = tmp_path / "state"
    seed, file = state / "hash-seed", state / "state.jsonl"
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(Capture()) for _ in range(3)]
        start = partial(
            serving,
            tmp_path,
            rules(*(each.url for each in replicas)),
            TAILGATE_STATE_DIR=str(state),
            TAILGATE_WORKERS=workers,
            TAILGATE_DRAIN_DEADLINE_S="0",
        )
        async with start() as served:
            before = await homes(served.url, replicas)
            assert len(set(before.values())) > 1
            served.signal(signal.SIGTERM)
            assert await served.exit_code() == 0, served.written.decode()
        assert seed.stat().st_mode & 0o777 == 0o600
        key = state_from_bytes(file.read_bytes()).memory["key"]
        if damaged:
            seed.write_text("0x7\n")
        async with start() as served:
            after = await homes(served.url, replicas, reversed(range(8)))
            served.signal(signal.SIGTERM)
            assert await served.exit_code() == 0, served.written.decode()
        assert (state_from_bytes(file.read_bytes()).memory["key"] == key) != damaged
        named = f"{seed} has no number from 1 to".encode() in served.written
        assert named == damaged
        if damaged:
            assert seed.read_text() == "0x7\n"
        else:
            assert after == before


@pytest.mark.parametrize("text", [b"", b"0\n", b"07\n", b"-1\n", b"4294967296\n", b"7 7\n", b"1\n2\n", b"\xff\n"])
def test_seed_that_is_no_number_in_range_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "hash-seed").write_bytes(text)
    with pytest.raises(HashSeedError, match="has no number from 1 to 4294967295"):
        read_seed(tmp_path)
    assert seed_of(tmp_path) is None
    assert (tmp_path / "hash-seed").read_bytes() == text


def test_seed_that_a_full_disk_does_not_take_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert seed_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


async def test_processes_that_make_a_seed_at_the_same_time_have_the_same(tmp_path: Path) -> None:
    code = "import sys, pathlib; from gateway.hash_seed import seed_of; print(seed_of(pathlib.Path(sys.argv[1])))"

    async def made() -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(tmp_path / "new"), stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0]

    (seed,) = set(await asyncio.gather(*[made() for _ in range(4)]))
    assert seed.strip().isdigit()
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["hash-seed"]


async def test_fields_of_another_version_or_policy_are_named_when_they_are_not_used(
    tmp_path: Path, emulator: EmulatorFactory, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await emulator(replicas=2)
    policy = rules(*fleet.urls)
    async with kept(tmp_path, policy) as gw:
        await answered(gw.url, 3)
    async with kept(tmp_path, policy):
        assert "nothing here uses" not in caplog.text
    path = tmp_path / "state.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)[1:]
    lines.append(line_of("memory", {**orjson.loads(lines[0])["memory"], "moods": 1}))
    (name, facts), *_ = orjson.loads(lines[1])["replicas"].items()
    lines.append(line_of("replicas", {name: {**facts, "kv": {**facts["kv"], "colour": 2}}}))
    path.write_bytes(with_header(b"".join(lines), time.time()))
    async with kept(tmp_path, policy):
        assert f"{path}: nothing here uses moods, replicas.*.kv.colour\n" in caplog.text
    async with kept(tmp_path, policy.replace("main", "other")):
        assert f"{path}: nothing here uses pools.main, rates.main\n" in caplog.text
