"""Reports have the outcomes of clients that were told when to retry."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from loadtests.replay.again import Newcomers, Told
from loadtests.replay.columns import read_rows
from loadtests.report.figures import report
from loadtests.report.page import page
from loadtests.report.run_file import read_run
from loadtests.report.terminal import print_report
from tests.loadtests.report.made import policy, written
from tests.loadtests.report.test_figures import MIXED, SCHEMA


@pytest.mark.parametrize("retries", [0, 2])
def test_report_counts_retries_told_to_wait_obedient_admitted_and_refused(tmp_path: Path, retries: int) -> None:
    run = read_run(written(tmp_path, MIXED, retries=retries))
    run.played.told = {"free": {"queue-full": Told(told=1234, obeyed=1100, admitted=900, refused=150)}}
    run.played.newcomers = {"free": Newcomers(admitted=750, refused=250)}
    found = report(run, read_rows(tmp_path), policy())
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)
    counts = {"told": 1234, "obeyed": 1100, "admitted": 900, "refused": 150}
    assert [of["retry_after"] for of in found["tiers"].values()] == [{"queue-full": counts}, {}]
    out = Console(width=160, record=True, file=StringIO())
    print_report(found, out)
    told = "free: queue-full: 1,234 told when to retry, 1,100 did, of which 900 were answered and 150 refused again"
    assert (told in out.export_text(clear=False)) == (retries > 0)
    share = "free: answered: 85.7% of those, 75.0% of newcomers"
    assert (share in out.export_text(clear=False)) == (retries > 0)
    assert ("1,100" in page(found)) == (retries > 0)
