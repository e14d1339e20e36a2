"""Conversations: turns in order, each after the answer before it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.sim.workload.traces import Mix
from loadtests.emulator.emulator import Emulator
from loadtests.emulator.replica import EmulatedReplica
from loadtests.replay.play import Kept, Plan, Played, play
from loadtests.replay.request import Outcome, Request
from loadtests.replay.target import Target
from loadtests.replay.written import Written
from loadtests.traces.prompt_file import PromptFile

ROOT = Path(__file__).resolve().parents[3]
FAST = Plan(lead_s=0.0, warm_connections=1, grace_s=20.0)
PARTS = [("human", "One?"), ("gpt", "recorded 1"), ("human", "Two?"), ("gpt", "recorded 2"), ("human", "Three?")]
TALK = {"conversations": [{"from": by, "value": value} for by, value in PARTS]}


@pytest.fixture
async def replica() -> AsyncIterator[EmulatedReplica]:
    async with Emulator(time_scale=50.0, model="m", output_median_tokens=5, output_sigma=0.0) as emulator:
        yield emulator.replicas[0]


async def talked(replica: EmulatedReplica, folder: Path, plan: Plan = FAST) -> tuple[list[Request], Played]:
    (folder / "talks.json").write_text(json.dumps([TALK, TALK]))
    file = PromptFile(folder / "talks.json", Mix(model="m"), rate_per_s=50.0)
    kept = Kept()
    played = await play(file.arrivals(1), Target(replica.url, model="m"), kept, plan)
    return sorted(kept.requests, key=lambda request: request.arrival.at), played


def messages(request: Request) -> list[object]:
    assert isinstance(request.arrival, Written)
    return [said["content"] for said in request.arrival.messages]


async def test_each_turn_follows_the_answer_before_it_and_has_it_as_history(
    replica: EmulatedReplica, tmp_path: Path
) -> None:
    requests, played = await talked(replica, tmp_path)
    assert (played.sent, played.ended, played.turns, played.turns_lost) == (6, 6, 4, 0)
    assert all(request.outcome is Outcome.FINISHED for request in requests)
    assert len({request.number for request in requests}) == 6
    for session in (1, 2):
        one, two, three = (request for request in requests if request.arrival.session == session)
        assert (messages(one), messages(two)) == (["One?"], ["One?", one.said, "Two?"])
        assert messages(three) == ["One?", one.said, "Two?", two.said, "Three?"]
        assert one.said
        assert one.ended_s <= two.arrival.at <= two.ended_s <= three.arrival.at


async def test_recorded_history_has_the_recorded_answers(replica: EmulatedReplica, tmp_path: Path) -> None:
    requests, _ = await talked(replica, tmp_path, replace(FAST, recorded=True))
    assert messages(requests[-1]) == ["One?", "recorded 1", "Two?", "recorded 2", "Three?"]
    assert all(request.said is None for request in requests)


async def test_turns_after_a_failed_answer_are_counted_as_lost(replica: EmulatedReplica, tmp_path: Path) -> None:
    replica.fault("garbage", how="http")
    requests, played = await talked(replica, tmp_path)
    assert (len(requests), played.turns, played.turns_lost) == (2, 0, 4)


async def test_command_replays_talks_and_keeps_answers_for_their_owner_alone(
    replica: EmulatedReplica, tmp_path: Path
) -> None:
    (tmp_path / "talks.json").write_text(json.dumps([TALK]))
    command = (sys.executable, "-m", "loadtests", "run", "--target", replica.url, "--prompts", "talks.json")
    options = ("--rate", "50", "--think", "0", "--keep-answers", "--allow-late", "--json", "--out", "out")
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [turn["finished"] for turn in report["turns"]["by_turn"].values()] == [1, 1, 1]
    assert report["turns"]["by_turn"]["3"]["cached"] is not None
    answers = tmp_path / "out" / "answers.jsonl"
    assert stat.S_IMODE(answers.stat().st_mode) == 0o600
    assert [json.loads(line)["turn"] for line in answers.read_text().splitlines()] == [1, 2, 3]
    assert f"the text of answers goes to {Path('out') / 'answers.jsonl'}, which only you may read" in done.stderr
    words = json.loads(answers.read_text().splitlines()[0])["text"]
    assert words not in (tmp_path / "out" / "report.html").read_text()
