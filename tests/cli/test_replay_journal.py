"""A fresh controller repeats the decisions of a live gateway from its journal; differences are shown."""

from __future__ import annotations

import asyncio
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from typer.testing import CliRunner, Result

import gateway.process
from gateway.app import Gateway
from gateway.cli.app import app
from gateway.core.policy import Policy
from gateway.policy import load_text
from gateway.policy.builtin import builtin
from gateway.settings import Settings
from loadtests.emulator import Emulator

CLIENT_KEY, REPLICA_KEY = "tg-client-canary", "replica-canary"
SHA256 = hashlib.sha256(CLIENT_KEY.encode()).hexdigest()
SECRET_WORDS = "nothing of what is asked is written: prompt-canary"


def policy(urls: list[str], slots: int, queue: int) -> Policy:
    """A tier with little patience and some limits; replicas that want a key of their own."""
    text = f"""\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main], aliases: [gpt]}}}}
pools:
  main: {{replicas: {json.dumps(urls)}, slots: {slots}, queue: {{limit: {queue}}}, api_key: "${{REPLICA_KEY}}"}}
tiers:
  free:
    timeouts: {{queue: 150ms}}
    limits: {{requests: 1k/min, concurrency: 20}}
    retry: {{budget: 1}}
    caps: {{n: 2}}
keys: [{{sha256: {SHA256}, tenant: acme}}]
"""
    return load_text(text, "policy.yaml", {"REPLICA_KEY": REPLICA_KEY})


def body(stream: bool, max_tokens: int, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": SECRET_WORDS}]
    return {"model": "gpt", "stream": stream, "max_tokens": max_tokens, "messages": messages, **more}


async def traffic(file: Path) -> list[int]:
    """Traffic with answers, refusals, clients that leave, failing replicas, a reload and a drain. Returns the
    statuses."""
    async with Emulator(replicas=2, time_scale=0.5) as replicas:
        urls = [*replicas.urls, "http://127.0.0.1:9"]
        settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, journal=file)
        async with Gateway(settings, policy(urls, slots=2, queue=6)) as gateway:
            head = {"authorization": f"Bearer {CLIENT_KEY}"}
            async with httpx.AsyncClient(base_url=gateway.url, headers=head, timeout=20) as client:

                async def ask(number: int) -> int:
                    told = body(number % 3 > 0, 4, n=1 + number % 2)
                    return (await client.post("/v1/chat/completions", json=told)).status_code

                async def leave() -> None:
                    async with client.stream("POST", "/v1/chat/completions", json=body(True, 400)) as answer:
                        async for _ in answer.aiter_bytes():
                            break

                statuses = await asyncio.gather(*(ask(number) for number in range(30)))
                gateway.reloads.configure(policy(urls[1:], slots=3, queue=2))
                await leave()
                statuses += [await ask(number) for number in range(6)]
                async with client.stream("POST", "/v1/chat/completions", json=body(True, 4000)):
                    await gateway.drain()
    return statuses


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A journal of real requests over real sockets, and their statuses."""
    file = tmp_path_factory.mktemp("journal") / "calls.jsonl"
    return file, uvloop.run(traffic(file))


@pytest.fixture
def copy(live: tuple[Path, list[int]], tmp_path: Path) -> Path:
    """A copy of that journal, for damage."""
    file = tmp_path / "calls.jsonl"
    file.write_bytes(live[0].read_bytes())
    return file


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["replay-journal", *map(str, arguments)], env={"COLUMNS": "300"})


def calls(file: Path) -> list[Any]:
    return [row for row in map(json.loads, file.read_text().splitlines()) if isinstance(row, list)]


def test_replay_of_a_live_journal_gives_the_same_answers(live: tuple[Path, list[int]]) -> None:
    file, statuses = live
    result = run(file)
    assert result.exit_code == 0, result.output
    assert f"{len(calls(file))} calls of " in result.stdout
    assert result.stdout.endswith("every answer is the same\n")
    # The traffic had all the events that it was meant to have.
    assert 200 in statuses
    made = {row[1] for row in calls(file)}
    assert {"arrive", "sent", "first_token", "finish", "leave", "observe", "configure", "shut"} <= made
    assert [row for row in calls(file) if isinstance(row[3], dict)] == [], "calls that raised"
    answers = {kind for row in calls(file) for command in row[3] for kind in command}
    assert answers == {"Dispatch", "Commit", "Cancel", "Refuse", "Ended"}


def test_journal_of_a_live_gateway_contains_no_secret(live: tuple[Path, list[int]]) -> None:
    written = live[0].read_text()
    assert "acme" in written
    for secret in (CLIENT_KEY, SHA256, REPLICA_KEY, "-canary", "Bearer"):
        assert secret not in written


def test_replay_prints_json_for_programs(live: tuple[Path, list[int]]) -> None:
    result = run("--json", live[0])
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["same"], told["complete"], told["cut"], told["stopped"]) == (True, True, False, "")
    assert told["calls"] == len(calls(live[0]))
    assert told["requests"] == sum(row[1] == "arrive" for row in calls(live[0]))
    assert (told["files"], told["divergence"]) == ([str(live[0])], None)


def test_replay_shows_the_first_different_answer_beside_the_recorded_one(copy: Path) -> None:
    lines = copy.read_text().splitlines()
    number, row = next((n, row) for n, row in enumerate(map(json.loads, lines)) if n and row[1:2] == ["arrive"])
    (replayed,) = row[3]
    replica = replayed["Dispatch"][2]
    recorded = {"Refuse": [1, {"Reason": "queue-full"}, {"float": "inf"}, ""]}
    copy.write_text("\n".join([*lines[:number], json.dumps([*row[:3], [recorded]]), *lines[number + 1 :]]) + "\n")
    result = run(copy)
    assert result.exit_code == 1
    shown = result.stdout.splitlines()
    assert shown[0].endswith("were answered alike, then one was answered differently:")
    assert shown[1].startswith(f"{copy}:{number + 1}: arrive at {row[0]!r}: [{{")
    assert (
        shown[2]
        == '  recorded  Refuse request_id=1 why={"Reason":"queue-full"} retry_after_s={"float":"inf"} detail=""'
    )
    assert shown[3].startswith(f'  replayed  Dispatch request_id=1 attempt=1 replica="{replica}" max_tokens=')
    told = json.loads(run("--json", copy).stdout)
    assert (told["same"], told["complete"]) == (False, False)
    assert told["divergence"]["line"] == number + 1
    assert (told["divergence"]["recorded"], told["divergence"]["replayed"]) == ([recorded], [replayed])


def test_a_gap_in_the_journal_ends_its_replay_with_exit_status_2(copy: Path) -> None:
    lines = copy.read_text().splitlines()
    copy.write_text("\n".join([*lines[:9], '{"gap":3}', *lines[9:]]) + "\n")
    result = run(copy)
    assert result.exit_code == 2
    assert f"were answered alike. 3 calls are missing at {copy}:10: the rest cannot be replayed" in result.stdout
    told = json.loads(run("--json", copy).stdout)
    assert (told["same"], told["complete"]) == (True, False)


def test_replay_refuses_a_journal_that_begins_with_its_second_part(copy: Path) -> None:
    copy.write_text(copy.read_text().replace('"part":1', '"part":2', 1))
    result = run(copy)
    assert result.exit_code == 2
    assert f"{copy} begins in the middle: it is part 2 of its run" in result.stderr


def test_replay_notes_a_killed_process_and_another_version(copy: Path) -> None:
    written = copy.read_text().replace('"version":"', '"version":"0.', 1)
    copy.write_text(written[:-20])
    result = run(copy)
    assert result.exit_code == 0
    assert "note: written by tailgate 0." in result.stdout
    assert "note: the last line is cut off" in result.stdout


@pytest.mark.parametrize("name", ["nowhere.jsonl", "."])
def test_unreadable_journal_exits_with_2_and_is_named(tmp_path: Path, name: str) -> None:
    result = run(tmp_path / name)
    assert result.exit_code == 2
    assert str(tmp_path / name) in result.stderr


def test_serve_says_at_the_start_that_its_journal_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.process, "configure_logging", lambda *_, **__: None)
    settings = Settings(port=0, admin_port=0, journal=tmp_path / "nowhere" / "calls.jsonl")
    assert gateway.process.serve(settings, None, partial(builtin, ["http://127.0.0.1:9"])) == 1
    assert "calls.jsonl cannot be written: No such file or directory" in capsys.readouterr().err


def test_replay_refuses_a_journal_file_that_is_given_twice(copy: Path) -> None:
    result = run(copy, copy)
    assert result.exit_code == 2
    assert f"{copy} is given twice" in result.stderr
