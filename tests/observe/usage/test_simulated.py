"""The ledger against the access log of a fleet with cancels, hedges, retries, failures and cuts: equal to the token."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core.commands import Command, Commit, Ended
from gateway.core.journal.recorder import Told
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.observe.requests.access_log import AccessLog
from gateway.observe.requests.row import RequestRow
from gateway.observe.usage.report import Question, report
from tests.core.test_long_run import Fleet

from .test_ledger import EVER, WALL_S, ledger

MANY = 100_000
FEW = 1_000
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


class Untold(list[Told]):
    """Forgets the calls of the controller, which would fill the memory."""

    def append(self, one: Told) -> None: ...


class MeteredFleet(Fleet):
    """A fleet whose engines report all counts of tokens, or some, or none; its requests are metered."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, Untold())
        self.book = ledger(folder / "usage.db")
        self.log = AccessLog(folder / "access.jsonl", lambda: WALL_S, 2**40, 1)
        self.committed: dict[int, int] = {}
        """The attempt whose answer the client was sent, by request."""

    def over(self, attempt: int, finish: AttemptResult) -> None:
        if finish.end is AttemptOutcome.COMPLETE and finish.output_tokens is not None:
            draw = self.random.choice
            finish = AttemptResult(
                finish.end,
                prompt_tokens=draw((None, 100, 120)),
                output_tokens=draw((None, finish.output_tokens)),
                tokens_seen=finish.output_tokens,
                cached_tokens=draw((None, 0, 64)),
                reasoning_tokens=draw((None, 0, 3)),
            )
        super().over(attempt, finish)

    def hear(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Commit):
                self.committed[command.request_id] = command.attempt
            elif isinstance(command, Ended):
                record = command.record
                answered = 0 if record.history is None else record.history.answered_by
                assert answered == self.committed.get(record.request.id, 0)
                row = RequestRow(record)
                self.book.meter.add(row)
                self.log.write(row)
        super().hear(commands)


def summed(line: dict[str, Any], sums: dict[str, Any]) -> None:
    """The rules of metering, as docs/guides/usage.md has them, for a line of the log."""
    sums["requests"] += 1
    sums["slot_s"] += sum(each["ended_s"] - each["opened_s"] for each in line["attempts"])
    answers = [each for each in line["attempts"] if each["answered"]]
    if not answers or line["outcome"] == "invalid":
        return
    (answer,) = answers
    sums["prompt_tokens"] += line["prompt_tokens"]
    sums["output_tokens"] += line["output_tokens"]
    for name, count in (("cached_tokens", answer["cached_tokens"]), ("reasoning_tokens", line["reasoning_tokens"])):
        if count is not None:
            sums[name] = (sums.get(name) or 0) + count


@pytest.mark.parametrize("requests", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
async def test_ledger_equals_the_access_log_of_a_fleet_that_fails(tmp_path: Path, requests: int) -> None:
    fleet = MeteredFleet(7, tmp_path)
    until = requests / 12.0
    for step in range(1, 11):
        # The end of each `run` ends the requests under way, as a restart does.
        fleet.run(until * step / 10)
        fleet.due.clear()
        fleet.book.flush()
    await fleet.book.aclose()
    await fleet.log.aclose()
    lines = (await asyncio.to_thread((tmp_path / "access.jsonl").read_bytes)).splitlines()
    expected: dict[tuple[str, str, str], dict[str, Any]] = defaultdict(lambda: defaultdict(int))
    for line in map(orjson.loads, lines):
        summed(line, expected[line["tenant"], line["tier"], line["model"]])
    rows: Any = report([tmp_path / "usage.db"], Question(("tenant", "tier", "model"), *EVER), None)["rows"]
    found = {(row["tenant"], row["tier"], row["model"]): row for row in rows}
    assert found.keys() == expected.keys()
    for cell, sums in expected.items():
        assert {name: found[cell][name] for name in COUNTS} == {name: sums.get(name) for name in COUNTS}
        assert found[cell]["slot_s"] == pytest.approx(sums["slot_s"], rel=1e-4)
    assert sum(row["requests"] for row in rows) == fleet.asks > 0.9 * requests
    assert fleet.seen["hedged"] > 0
    assert fleet.seen["abandoned"] > 0
    assert fleet.seen["cut"] > 0
    assert fleet.seen["error"] > 0
