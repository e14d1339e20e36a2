"""The ledger: equal to the sum of the requests, whatever happens to the disk or the process."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.history import AttemptHistory, EarlyRefusal, History, Origin
from gateway.core.results import Outcome, Reason, Record
from gateway.observe.requests.row import RequestRow
from gateway.observe.usage.database import UsageDatabase, UsageError
from gateway.observe.usage.ledger import UsageLedger
from gateway.observe.usage.metering import Sums
from gateway.observe.usage.report import Question, report
from tests.observe.made import ASK, OK

WALL_S = 1_700_000_000.0
EVER = (0, 10_000_000)
ENDS = ((Outcome.OK, None), (Outcome.ERROR, Reason.UPSTREAM_TRUNCATED), (Outcome.ABANDONED, Reason.CLIENT_GONE))
NEVER_SENT = ((Outcome.REFUSED, Reason.QUEUE_FULL), (Outcome.TIMEOUT, Reason.TTFT_TIMEOUT))


def ledger(path: Path) -> UsageLedger:
    return UsageLedger(path, lambda: WALL_S, lambda: 0.0, dict)


def by_chance(chance: random.Random) -> Record:
    """A request of some tenant that ends in some way, after some attempts."""
    answered = chance.random() < 0.7
    outcome, why = chance.choice(ENDS if answered else NEVER_SENT)
    attempts = []
    for number in range(1, chance.randint(1, 3) + 1):
        attempt = AttemptHistory("short", f"r{number}", number > 1, "complete", 0.0, chance.random())
        attempt.id = number
        attempt.prompt_tokens = chance.choice([None, 100])
        attempt.cached_tokens = chance.choice([None, 0, 64])
        attempts.append(attempt)
    history = History(attempts, 120, 256)
    history.answered_by = chance.randint(1, len(attempts)) if answered else 0
    tenant, key = chance.choice([("acme", "1a"), ("acme", "2b"), ("globex", "3c")])
    request = replace(ASK, tenant=tenant, origin=Origin("x", key), body_at=chance.uniform(0, 7200))
    tokens: dict[str, Any] = {"prompt_tokens": chance.randrange(4000), "output_tokens": chance.randrange(900)}
    good = outcome is Outcome.OK and chance.random() < 0.8
    return replace(OK, request=request, outcome=outcome, why=why, history=history, good=good, **tokens)


def summed(records: list[Record]) -> dict[tuple[str, str], list[int]]:
    """By tenant and key: requests, prompt and output tokens, in the plainest way."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for record in records:
        sent = record.history is not None and record.history.answered_by > 0
        mine = sums[record.request.tenant, record.request.origin.key]
        mine[0] += 1
        mine[1] += record.prompt_tokens if sent else 0
        mine[2] += record.output_tokens if sent else 0
    return dict(sums)


def kept(path: Path) -> dict[tuple[str, str], list[int]]:
    found: Any = report([path], Question(("tenant", "key"), *EVER), None)["rows"]
    return {(row["tenant"], row["key"]): [row["requests"], row["prompt_tokens"], row["output_tokens"]] for row in found}


async def test_ledger_equals_the_log_of_ten_thousand_requests_to_the_token(tmp_path: Path) -> None:
    chance, path = random.Random(5), tmp_path / "usage.db"
    records = [by_chance(chance) for _ in range(10_000)]
    for part in (records[:4000], records[4000:]):  # a restart in between
        book = ledger(path)
        for number, record in enumerate(part):
            book.meter.add(RequestRow(record))
            if number % 100 == 0:
                book.flush()
        await book.aclose()
    assert kept(path) == summed(records)


async def test_usage_survives_a_file_that_is_locked_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.observe.usage.database.WAIT_S", 0.01)
    path = tmp_path / "usage.db"
    book = ledger(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    book.meter.add(RequestRow(OK))
    book.flush()
    async with asyncio.timeout(30):
        while not book.error:  # the thread tells nobody
            await asyncio.to_thread(book.flush)
    other.execute("COMMIT")
    other.close()
    book.meter.add(RequestRow(OK))
    await book.aclose()
    assert kept(path) == {("acme", ""): [2, 0, 0]}
    assert "kept in memory" in caplog.text


def test_large_sums_that_a_full_disk_takes_no_more_are_refused_with_the_cause_and_then_added_once(
    tmp_path: Path,
) -> None:
    book, before = UsageDatabase(tmp_path / "usage.db"), resource.getrlimit(resource.RLIMIT_FSIZE)
    sums = {(1, "acme", str(number), "free", "m" * 500): Sums(requests=1) for number in range(10_000)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(sqlite3.OperationalError, match="disk"):
            book.add(sums)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    book.add(sums)
    assert sum(each.requests for _, each in book.read(*EVER)) == len(sums)
    book.close()


async def test_two_processes_add_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    books = [ledger(path), ledger(path)]
    for book in books:
        book.meter.add(RequestRow(OK))
        await book.aclose()
    assert kept(path) == {("acme", ""): [2, 0, 0]}


async def test_request_refused_unread_counts_for_its_tenant_and_a_stranger_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    book = ledger(path)
    known = EarlyRefusal(0.0, Reason.LIMIT_REQUESTS.value, "x")
    known.tenant, known.tier, known.key = "acme", "premium", "1a"
    book.meter.add(known)
    book.meter.add(EarlyRefusal(0.0, Reason.UNAUTHORIZED.value, "y"))
    await book.aclose()
    total: Any = report([path], Question((), *EVER), None)["total"]
    assert (total["requests"], total["refused"]) == (1, 1)


KILLED = """
import os, signal, sys, time
from pathlib import Path
from gateway.observe.requests.row import RequestRow
from tests.observe.made import OK
from tests.observe.usage.test_ledger import ledger, kept
path = Path(sys.argv[1])
book = ledger(path)
book.meter.add(RequestRow(OK))
book.flush()
while not kept(path):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_usage_that_was_flushed_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert kept(path) == {("acme", ""): [1, 0, 0]}


def test_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    UsageDatabase(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match="newer tailgate"):
        UsageDatabase(path)


def test_file_that_is_no_database_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    path.write_text("not a database, but long enough to be read as one" * 100)
    with pytest.raises(UsageError, match=str(path)):
        UsageDatabase(path)


def test_time_of_replicas_that_several_gateways_saw_counts_once_an_hour(tmp_path: Path) -> None:
    seen = {"a.db": {(10, "main"): 7200.0, (11, "main"): 1800.0}, "b.db": {(10, "main"): 3600.0, (12, "main"): 3600.0}}
    for name, fleet in seen.items():
        database = UsageDatabase(tmp_path / name)
        database.add({}, fleet)
        database.close()
    found: Any = report([tmp_path / name for name in seen], Question((), *EVER), None)["fleet"]
    assert found["replica_hours"] == 2.0 + 0.5 + 1.0


def test_place_of_the_file_that_cannot_be_is_named_with_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a directory: give a file, such as .*usage\.db"):
        UsageDatabase(tmp_path)
    with pytest.raises(UsageError, match=r"none is not a directory: make it, or give another place for usage\.db"):
        UsageDatabase(tmp_path / "none" / "usage.db")
