"""Journals that earlier versions wrote are replayed: the controller decides as it did when each was recorded.

`journals/` holds what the version of 2026-11-26 (format 1) wrote, before its classes were renamed: forty seconds of
every fault at once, a slow replica under `policies/default.yaml`, and three tiers in overload with a replica that
dies.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gateway.observe.journal.replay import in_order, replay

JOURNALS = sorted((Path(__file__).parent / "journals").glob("*.jsonl.gz"))


@pytest.mark.parametrize("packed", JOURNALS, ids=lambda path: path.name)
def test_a_journal_of_format_1_is_replayed_to_its_end_without_a_difference(packed: Path, tmp_path: Path) -> None:
    journal = tmp_path / packed.stem
    journal.write_bytes(gzip.decompress(packed.read_bytes()))
    done = replay(in_order([journal]), lambda size: None)
    assert done.divergence is None
    assert (done.stopped, done.cut) == ("", False)
    assert done.calls == journal.read_bytes().count(b"\n") - journal.read_bytes().count(b'\n{"let"') - 1
    assert done.requests > 400
