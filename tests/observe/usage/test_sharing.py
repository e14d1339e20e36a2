"""Gateways share their sums over a real store: any file has those of all, each once, whatever happens to the store."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from time import time
from typing import Any

import pytest

from gateway.observe.usage.database import UsageDatabase, UsageError
from gateway.observe.usage.hour_bytes import from_bytes, to_bytes
from gateway.observe.usage.metering import Sums
from gateway.observe.usage.report import Question, report
from gateway.observe.usage.sharing import INDEX, UsageSharing
from tests.stores import RealStore, needs_store, real_store

HOUR = int(time() // 3600) - 3
EVER = Question(("tenant",), 0, 10_000_000)
pytestmark = needs_store


class Book:
    """The file of one gateway, and what it shares."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.database = UsageDatabase(path)
        self.sharing = UsageSharing(url, path)

    def use(self, requests: int, hour: int = HOUR, tenant: str = "acme", replica_s: float = 1.0) -> None:
        sums = Sums(requests, good=requests, prompt_tokens=10 * requests, slot_s=0.5 * requests)
        self.database.add({(hour, tenant, "1a", "paid", "llama"): sums}, {(hour, "main"): replica_s})

    def found(self) -> dict[str, Any]:
        found: Any = report([self.path], EVER, None)
        return {name: found[name] for name in ("rows", "total", "fleet", "gateways")}

    def requests(self) -> int:
        return int(self.found()["total"]["requests"])


@pytest.fixture
async def store() -> AsyncIterator[RealStore]:
    async with real_store() as running:
        yield running


@pytest.fixture
def books(store: RealStore, tmp_path: Path) -> list[Book]:
    return [Book(tmp_path / f"{name}.db", store.url) for name in "abc"]


def exchange(books: list[Book]) -> None:
    """All tell, and then all hear all."""
    for book in (*books, *books):
        book.sharing.exchange()


async def test_each_file_has_the_sums_of_all_gateways_once_however_often_they_are_told(books: list[Book]) -> None:
    for number, book in enumerate(books):
        book.use(10**number, replica_s=60.0 + number)
    for _ in range(3):
        exchange(books)
    found = [book.found() for book in books]
    assert found[0] == found[1] == found[2]
    (row,) = found[0]["rows"]
    assert (row["requests"], row["prompt_tokens"], found[0]["gateways"]) == (111, 1110, 3)
    assert found[0]["fleet"]["replica_hours"] == pytest.approx(62.0 / 3600), "they stand in front of the same replicas"
    assert report([book.path for book in books], EVER, None) == report([books[0].path], EVER, None)


async def test_sums_of_any_order_of_use_outages_and_restarts_are_equal_in_the_end(
    books: list[Book], store: RealStore
) -> None:
    draw, used = Random(5), 0
    for _ in range(60):
        book = draw.choice(books)
        match draw.randrange(6):
            case 0:
                book.sharing.exchange()
            case 1:  # its next process knows only what is in the file
                book.sharing = UsageSharing(store.url, book.path)
            case 2:
                await store.tell("FLUSHALL")
            case _:
                count = draw.randrange(1, 100)
                book.use(count, HOUR + draw.randrange(3), draw.choice(("acme", "globex")))
                used += count
    exchange(books)
    assert [book.requests() for book in books] == [used] * 3


async def test_file_of_a_gateway_that_is_gone_counts_on_and_one_that_comes_later_learns_it(
    books: list[Book],
) -> None:
    gone, other, later = books
    gone.use(7)
    await gone.sharing.aclose()
    exchange([other])
    gone.path.unlink()
    exchange([later])
    assert (other.requests(), later.requests()) == (7, 7)


@pytest.mark.parametrize("fault", ["killed", "full", "frozen"])
async def test_outage_of_the_store_is_told_once_and_costs_nothing(
    books: list[Book], store: RealStore, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tailgate")
    one, other = books[:2]
    one.use(1)
    exchange([one, other])
    if fault == "killed":
        await store.kill()
    elif fault == "full":
        await store.tell("CONFIG", "SET", "maxmemory", "1")
    else:
        store.signal(signal.SIGSTOP)
    one.use(2)
    for _ in range(2):
        one.sharing.exchange()
    assert "the latest sums of other gateways are missing" in one.sharing.problem
    assert (one.requests(), other.requests()) == (3, 1)
    if fault == "killed":
        await store.start()
    elif fault == "full":
        await store.tell("CONFIG", "SET", "maxmemory", "0")
    else:
        store.signal(signal.SIGCONT)
    exchange([one, other])
    assert (one.requests(), other.requests(), one.sharing.problem) == (3, 3, "")
    told = [record.getMessage() for record in caplog.records]
    assert sum("is not shared" in line for line in told) == sum("is shared" in line for line in told) == 1


async def test_value_that_no_gateway_wrote_is_logged_once_and_ignored(
    books: list[Book], store: RealStore, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = f"{HOUR}:{'0' * 16}"
    await store.tell("SET", f"{INDEX}:{stranger}", "nonsense")
    await store.tell("HSET", INDEX, stranger, f"{9 * 10**8}:{'1' * 16}")
    await store.tell("HSET", INDEX, "nonsense", "nonsense")
    books[0].use(1)
    for _ in range(3):
        exchange(books[:2])
    assert books[1].requests() == 1
    assert [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()] == [
        record.getMessage() for record in caplog.records
    ]
    assert len(caplog.records) == 2, "once at each gateway"


async def test_index_forgets_values_that_the_store_has_forgotten(books: list[Book], store: RealStore) -> None:
    await store.tell("HSET", INDEX, f"{HOUR}:{'0' * 16}", f"3:{'1' * 16}")
    exchange(books[:1])
    assert await store.tell("HLEN", INDEX) == 0


@pytest.mark.parametrize("value", [b"", b"nonsense", to_bytes([], {})[:-6]])
def test_bytes_that_are_no_sums_are_refused(value: bytes) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        from_bytes(value, HOUR)


def test_sums_read_back_as_they_were_written() -> None:
    sums = [((HOUR, "acme", "1a", "paid", "llama"), Sums(3, cached_tokens=0, slot_s=0.25))]
    fleet = {(HOUR, "main"): 3.5}
    assert from_bytes(to_bytes(sums, fleet), HOUR) == (sums, fleet)
