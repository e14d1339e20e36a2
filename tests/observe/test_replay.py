"""A journal is replayed to a fresh controller, part by part, and the first different answer is found."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core.journal.recorder import Told
from gateway.observe.journal import writer
from gateway.observe.journal.replay import NotReplayable, Replayed, in_order, replay
from gateway.observe.journal.writer import Journal

from .made import POLICY, serve

REQUESTS = 30


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every journal complete, however slow the disk is."""
    monkeypatch.setattr(writer, "CLOSE_S", 300.0)


def written(path: Path, max_bytes: int = 2**20) -> list[Path]:
    """A journal of `REQUESTS` requests, in several parts."""
    path.mkdir(exist_ok=True)
    journal = Journal(path / "j", POLICY, 5, "1.2.3", max_bytes=max_bytes, files=1000)

    def tell(told: Told) -> None:
        journal.tell(told)
        journal.flush()

    serve(REQUESTS, tell)
    asyncio.run(journal.aclose())
    return sorted(path.iterdir())


def told(*paths: Path) -> Replayed:
    return replay(in_order(paths), lambda _: None)


def change(path: Path, line: int, row: Any) -> None:
    """Replace a line (0: the header)."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = row if isinstance(row, bytes) else orjson.dumps(row) + b"\n"
    path.write_bytes(b"".join(lines))


def test_journal_parts_given_in_any_order_are_replayed_in_sequence(tmp_path: Path) -> None:
    files = written(tmp_path, max_bytes=6000)
    assert len(files) > 2
    sizes: list[int] = []
    done = replay(in_order(files), sizes.append)
    assert (done.calls, done.requests, done.divergence, done.stopped) == (4 * REQUESTS, REQUESTS, None, "")
    assert (done.began_at, done.ended_at) == (100.0, 99.25 + REQUESTS)
    heads = sum(len(file.read_bytes().splitlines(keepends=True)[0]) for file in files)
    assert sum(sizes) + heads == sum(file.stat().st_size for file in files)


def test_a_journal_that_begins_in_the_middle_is_refused_with_the_file_that_is_missing(tmp_path: Path) -> None:
    files = written(tmp_path, max_bytes=6000)
    first, second, *rest = in_order(files)
    with pytest.raises(NotReplayable, match=r"j\S* begins in the middle: it is part 2 of its run") as refused:
        in_order([second.path, *(part.path for part in rest)])
    assert f"Part 1 is needed too, which is {first.path} unless" in str(refused.value)
    assert "if that was deleted (TAILGATE_JOURNAL_FILES are kept), this run cannot be replayed" in str(refused.value)
    with pytest.raises(NotReplayable, match=r"it is part 3 of its run") as refused:
        in_order([first.path, *(part.path for part in rest)])
    assert f"Part 2 is needed too, which is {second.path} unless" in str(refused.value)
    with pytest.raises(NotReplayable) as refused:
        in_order([rest[-1].path])
    assert rest[-1].path.name == "j"
    assert f"Part 1 is needed too, which is {first.path} unless" in str(refused.value)


def test_replay_refuses_journal_files_of_two_runs(tmp_path: Path) -> None:
    one, other = [written(tmp_path / name)[0] for name in ("one", "other")]
    with pytest.raises(NotReplayable, match="different runs of the process"):
        in_order([one, other])


def test_replay_finds_the_first_different_answer(tmp_path: Path) -> None:
    (file,) = written(tmp_path)
    row = orjson.loads(file.read_bytes().splitlines()[6])
    assert row[1] == "arrive"
    change(file, 6, [row[0], "arrive", row[2], [{"Dispatch": [1, 2, "r9", 5]}]])
    change(file, 10, [row[0], "arrive", row[2], []])
    done = told(file)
    assert (done.calls, done.requests, done.stopped) == (5, 1, "")
    assert done.divergence is not None
    assert (done.divergence.file, done.divergence.line, done.divergence.call) == (str(file), 7, "arrive")
    assert done.divergence.recorded == [{"Dispatch": [1, 2, "r9", 5]}]
    assert done.divergence.replayed == row[3]


def test_replay_finds_a_difference_of_one_bit(tmp_path: Path) -> None:
    """The next larger float must count as a different answer."""
    (file,) = written(tmp_path)
    whole = file.read_bytes()
    row = orjson.loads(whole.splitlines()[4])
    ended = row[3][-1]["Ended"][0]["Record"]
    place = ended.index(0.25)
    for other in (0.25000000000000006, 0.24999999999999997):
        ended[place] = other
        change(file, 4, row)
        assert told(file).calls == 3
    file.write_bytes(whole)
    assert told(file).divergence is None


def test_replay_stops_at_a_gap_in_the_journal(tmp_path: Path) -> None:
    (file,) = written(tmp_path)
    change(file, 9, {"gap": 12})
    done = told(file)
    assert (done.calls, done.divergence) == (8, None)
    assert done.stopped == f"12 calls are missing at {file}:10: the rest cannot be replayed"


def test_replay_ends_before_a_last_journal_line_that_is_cut_off(tmp_path: Path) -> None:
    (file,) = written(tmp_path)
    file.write_bytes(file.read_bytes()[:-9])
    done = told(file)
    assert (done.calls, done.cut, done.divergence, done.stopped) == (4 * REQUESTS - 1, True, None, "")


@pytest.mark.parametrize(
    ("line", "row", "complaint"),
    [
        (0, b"apiVersion: tailgate/v1\n", "is not a journal"),
        (
            0,
            {"journal": 2, "run": "r", "part": 1, "version": "9"},
            "is a journal in format 2, of tailgate 9: .* format 3",
        ),
        (
            0,
            {"journal": 3, "run": "r", "part": 1, "version": "9"},
            r"j:1: the header is not .*\(written by tailgate 9\)",
        ),
        (3, b"[1.0,\n", "j:4: this is not JSON"),
        (3, {"lte": 1}, "j:4: a line is neither a call nor a known object"),
        (3, [1.0, "arive", [], []], "j:4: .* is not a call"),
        (3, {"let": "2", "be": 3}, "j:4: 2 is neither a policy nor a tier nor a model"),
    ],
)
def test_invalid_journal_line_is_refused_with_its_place(tmp_path: Path, line: int, row: object, complaint: str) -> None:
    (file,) = written(tmp_path)
    change(file, line, row)
    with pytest.raises(NotReplayable, match=complaint):
        told(file)
