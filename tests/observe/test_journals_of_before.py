"""Journals of earlier versions are read to their end, and replayed as far as forecasts are equal.

`journals/` holds journals of the version of 2026-11-26 (format 1), with other class names. They have forty seconds of
every fault at once, a slow replica under `policies/default.yaml`, and three tiers in overload with a replica that dies.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gateway.core.journal.recorder import Decoder
from gateway.observe.journal.replay import in_order, lines, replay

JOURNALS = {path.name.partition(".")[0]: path for path in (Path(__file__).parent / "journals").glob("*.jsonl.gz")}
ALIKE = 90
"""At least this many calls get equal answers. After them, a cold pool has learned costs and speeds that it did not
learn in that version (ADR 0014). So the forecasts in its records differ.
"""


def unpacked(name: str, folder: Path) -> Path:
    journal = folder / f"{name}.jsonl"
    journal.write_bytes(gzip.decompress(JOURNALS[name].read_bytes()))
    return journal


@pytest.mark.parametrize("name", JOURNALS)
def test_every_call_and_answer_of_a_journal_of_format_1_is_read(name: str, tmp_path: Path) -> None:
    parts = in_order([unpacked(name, tmp_path)])
    decoder, calls, commands = Decoder(parts[0].about), 0, 0
    for line in lines(parts):
        match line.row:
            case {"let": let, "be": value}:
                decoder.let({"let": let, "be": value})
            case list(row):
                decoder.call(row)
                answer = decoder.answer(row)
                assert isinstance(answer, list)
                calls, commands = calls + 1, commands + len(answer)
            case other:
                raise AssertionError(other)
    assert calls > 3000
    assert commands > 1000


@pytest.mark.parametrize("name", JOURNALS)
def test_journal_of_format_1_replays_equally_until_forecasts_differ(name: str, tmp_path: Path) -> None:
    journal = unpacked(name, tmp_path)
    done = replay(in_order([journal]), lambda size: None)
    assert done.calls > ALIKE
    assert (done.stopped, done.cut) == ("", False)
