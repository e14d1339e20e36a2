"""A journal has complete lines, even if the disk fails, and requests never wait for it."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core.journal.recorder import Decoder
from gateway.core.sample import Sample
from gateway.observe.journal import parts, writer
from gateway.observe.journal.parts import Parts
from gateway.observe.journal.replay import in_order, replay
from gateway.observe.journal.writer import BATCH, Journal
from gateway.settings import SettingError

from .made import ASK, POLICY, policy, serve

HEADER = {"run": "r", "version": "1"}
LINE = b'[1.0,"wake",[],[]]\n'


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every journal complete, however slow the disk is."""
    monkeypatch.setattr(writer, "CLOSE_S", 300.0)


def rows(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def journal(path: Path, **more: int) -> Journal:
    return Journal(path, POLICY, 5, "1.2.3", **{"max_bytes": 2**20, "files": 3, **more})


def fail(monkeypatch: pytest.MonkeyPatch, *which: int) -> None:
    """Make these writes (0: the next one) write only half and fail, as on a full disk."""
    count, write = [0], parts.write_all

    def full(fd: int, data: bytes) -> None:
        count[0] += 1
        if count[0] - 1 in which:
            write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(fd, data)

    monkeypatch.setattr(parts, "write_all", full)


# ---- the files


def test_full_journal_files_are_kept_under_numbers_and_the_oldest_goes(tmp_path: Path) -> None:
    files = Parts(tmp_path / "j", HEADER, max_bytes=100, files=3)
    for _ in range(8):
        files.write(LINE * 2)
    files.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j", "j.1", "j.2"]
    heads = [rows(tmp_path / name)[0] for name in ("j.2", "j.1", "j")]
    assert heads == [{"journal": 3, "part": part, **HEADER} for part in (6, 7, 8)]
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600


def test_journal_files_of_an_earlier_process_are_kept(tmp_path: Path) -> None:
    for run in range(3):
        files = Parts(tmp_path / "j", {"run": run}, max_bytes=100, files=2)
        files.write(LINE)
        files.close()
    assert [rows(tmp_path / name)[0] for name in ("j.1", "j")] == [{"journal": 3, "part": 1, "run": n} for n in (1, 2)]
    assert not (tmp_path / "j.2").exists()


def test_a_journal_that_another_process_writes_is_not_opened(tmp_path: Path) -> None:
    files = Parts(tmp_path / "j", HEADER, max_bytes=100, files=3)
    with pytest.raises(SettingError, match="another process writes the journal"):
        Parts(tmp_path / "j", HEADER, max_bytes=100, files=3)
    files.write(LINE * 9)
    files.write(LINE * 9)
    with pytest.raises(SettingError, match="another process"):
        Parts(tmp_path / "j", HEADER, max_bytes=100, files=3)
    files.close()
    Parts(tmp_path / "j", HEADER, max_bytes=100, files=3).close()


@pytest.mark.parametrize(("name", "complaint"), [("", "it is not a file"), ("nowhere/j", "No such file or directory")])
def test_unwritable_journal_is_refused_at_the_start(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        Parts(tmp_path / name, HEADER, max_bytes=100, files=3)


def test_journal_line_that_was_written_in_part_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Parts(tmp_path / "j", HEADER, max_bytes=10_000, files=3)
    fail(monkeypatch, 1)
    files.write(LINE)
    with pytest.raises(OSError, match="No space left"):
        files.write(LINE * 2)
    files.write(LINE)
    files.close()
    assert rows(tmp_path / "j")[1:] == [orjson.loads(LINE)] * 2


def test_journal_goes_on_in_its_file_if_no_other_can_be_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Parts(tmp_path / "j", HEADER, max_bytes=100, files=3)
    files.write(LINE * 5)
    fail(monkeypatch, 0)
    with pytest.raises(OSError, match="No space left"):
        files.write(LINE)
    assert rows(tmp_path / "j")[1:] == [orjson.loads(LINE)] * 5
    assert not (tmp_path / "j.1").exists()
    files.write(LINE)
    files.close()
    assert (rows(tmp_path / "j")[0]["part"], len(rows(tmp_path / "j.1"))) == (2, 6)


# ---- the journal


async def test_recorded_calls_are_written_and_replayed_with_the_same_answers(tmp_path: Path) -> None:
    written = journal(tmp_path / "j")
    serve(BATCH, written.tell)
    await written.aclose()
    first, *calls = rows(tmp_path / "j")
    assert (first["seed"], first["version"]) == (5, "1.2.3")
    assert len(calls) == 4 * BATCH
    assert written.dropped == 0
    done = replay(in_order([tmp_path / "j"]), lambda _: None)
    assert (done.calls, done.requests, done.divergence, done.stopped) == (4 * BATCH, BATCH, None, "")


async def test_full_disk_leaves_a_journal_gap_that_is_counted_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = journal(tmp_path / "j")
    fail(monkeypatch, 1, 2)
    for chunk in range(4):
        for _ in range(chunk + 1):
            written.tell(("wake", (float(chunk),), []))
        written.flush()
    await written.aclose()
    calls = [[float(chunk), "wake", [], []] for chunk in range(4)]
    assert rows(tmp_path / "j")[1:] == [calls[0], {"gap": 5}, *[calls[3]] * 4]
    assert written.dropped == 5
    assert [record.getMessage() for record in caplog.records] == [
        f"calls are missing in the journal {tmp_path / 'j'}, so the rest cannot be replayed: No space left on device"
    ]


async def test_journal_object_lost_to_a_full_disk_is_written_after_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise calls under a policy that was loaded in between could not be read."""
    written = journal(tmp_path / "j")
    fail(monkeypatch, 0, 1, 2)
    loaded = [policy(generation=number) for number in (2, 3)]
    for at, new in enumerate(loaded):
        written.tell(("configure", (new, float(at)), []))
        written.flush()
    written.tell(("wake", (2.0,), []))
    written.flush()
    written.tell(("arrive", (replace(ASK, policy=loaded[0]), 3.0), []))
    written.flush()
    written.tell(("configure", (loaded[1], 4.0), []))
    await written.aclose()
    first, gap, *rest = rows(tmp_path / "j")
    assert gap == {"gap": 3}
    assert [row["let"] if "let" in row else row[1] for row in rest] == ["2", "3", "arrive", "configure"]
    decoder = Decoder(first)
    for row in rest[:2]:
        decoder.let(row)
    assert [decoder.call(row)[0] for row in rest[2:]] == ["arrive", "configure"]


async def test_hanging_disk_of_the_journal_delays_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = journal(tmp_path / "j")
    monkeypatch.setattr(writer, "BUFFER_BYTES", 10)
    moves, write = threading.Event(), parts.write_all

    def hang(fd: int, data: bytes) -> None:
        moves.wait()
        write(fd, data)

    monkeypatch.setattr(parts, "write_all", hang)
    for at in (1.0, 2.0, 3.0):
        written.tell(("wake", (at,), []))
        written.flush()
    assert written.dropped == 2
    moves.set()
    await written.aclose()
    assert rows(tmp_path / "j")[1:] == [[1.0, "wake", [], []], {"gap": 2}]
    assert "the disk does not keep up" in caplog.text


async def test_call_that_cannot_be_encoded_leaves_a_gap_in_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = journal(tmp_path / "j")
    written.tell(("observe", ("\udcff", Sample(), 1.0), []))
    written.flush()
    written.tell(("wake", (2.0,), []))
    await written.aclose()
    assert rows(tmp_path / "j")[1:] == [{"gap": 1}, [2.0, "wake", [], []]]
    assert "a call cannot be written" in caplog.text


def test_journal_keeps_calls_in_memory_only_until_their_batch_is_full(tmp_path: Path) -> None:
    """Otherwise a fast loop would keep all requests since the last flush in memory."""
    written = journal(tmp_path / "j")
    longest = 0
    for _ in range(3 * BATCH):
        written.tell(("wake", (1.0,), []))
        longest = max(longest, written.pending)
    assert longest == BATCH - 1
