"""The page is self-contained, and shows warnings before figures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from loadtests.charts.chart import Chart
from loadtests.replay.columns import read_rows
from loadtests.replay.request import Outcome
from loadtests.report.figures import report
from loadtests.report.page import page
from loadtests.report.pictures import pictures
from loadtests.report.run_file import read_run
from loadtests.report.terminal import print_report
from loadtests.report.trust import warnings
from loadtests.report.words import headline, share, time
from tests.loadtests.report.made import answered, policy, refused, written
from tests.loadtests.report.test_figures import MIXED, SCHEMA


def made(folder: Path, requests: list[Any] = MIXED, **about: Any) -> dict[str, Any]:
    written(folder, requests, **about)
    return report(read_run(folder), read_rows(folder), policy())


def test_latency_curves_are_drawn_with_each_objective_labelled(tmp_path: Path) -> None:
    requests = [answered(n / 2, tier) for n in range(100) for tier in ("gold", "free")]
    levels = {
        picture.name: picture.levels for picture in pictures(made(tmp_path, requests)) if isinstance(picture, Chart)
    }
    ttft = {"objective 200 ms: p50 of gold": 0.2, "objective 1 s: p99 of gold": 1.0}
    assert levels["ttft-over-time"] == levels["ttft-percentiles"] == ttft
    assert levels["e2e-percentiles"] == {"objective 10 s: p95 of free": 10.0}


def test_report_page_is_complete_and_fetches_nothing(tmp_path: Path) -> None:
    text = page(made(tmp_path, traffic="<script>alert(1)</script>"))
    assert "{body}" not in text
    assert "<script" not in text
    assert not re.search(r"""(?:src|href)=|url\(|@import""", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    drawings = re.findall(r"<svg.*?</svg>", text)
    assert len(drawings) == 5
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing


def test_report_summary_has_cached_prompts_by_tier_if_answers_report_them(tmp_path: Path) -> None:
    told = [answered(1.0), answered(2.0, "free")]
    told[0].cached_tokens, told[1].cached_tokens = 40, 10
    for folder, requests in (("told", told), ("untold", MIXED)):
        out = Console(width=120, record=True, file=StringIO())
        print_report(made(tmp_path / folder, requests), out)
        lines = [line for line in out.export_text().splitlines() if "prefix caches" in line]
        line = "Prompt tokens found in prefix caches: 50.0% (free 20.0%, gold 80.0%)"
        assert lines == ([line] if folder == "told" else [])


def test_report_summary_fits_a_terminal(tmp_path: Path) -> None:
    out = Console(width=80, record=True, file=StringIO())
    print_report(made(tmp_path), out)
    text = out.export_text()
    assert "22.2% of 9 counted requests (of 12) were good" in text
    assert "free: invalid: context-length 1" in text
    assert "gold: p99 TTFT ≤ 1 s: 1.5 s, missed" in text
    assert "free: shed: evicted 1" in text


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"interrupted": True}, "Partial"),
        ({"clients": 4}, "Closed loop: 4 clients"),
        ({"policy": None}, "No policy"),
        ({"length": "exact"}, "answers were shorter"),
    ],
)
def test_warnings_of_a_report_come_first(tmp_path: Path, about: dict[str, Any], told: str) -> None:
    short = answered(50.0)
    short.output_tokens = 3
    assert warnings(made(tmp_path / "a", [answered(1.0)])) == []
    assert any(told in text for text in warnings(made(tmp_path / "b", [answered(1.0), short], **about)))


@pytest.mark.parametrize(("probed", "counts", "said"), [(False, False, 1), (True, False, 0), (False, True, 0)])
def test_page_says_when_prompt_tokens_were_not_counted(tmp_path: Path, probed: bool, counts: bool, said: int) -> None:
    request = answered(1.0)
    request.prompt_tokens = 50 if counts else None
    told = warnings(made(tmp_path, [request], probed=probed))
    assert sum("The target does not count the tokens of prompts" in text for text in told) == said


@pytest.mark.parametrize(("late", "which"), [(1, "the maxima"), (3, "the p99.9 and the maxima")])
def test_report_after_a_generator_stall_says_which_figures_it_may_affect(tmp_path: Path, late: int, which: str) -> None:
    requests = [answered(n / 25, late_s=0.501 if n < late else 0.001) for n in range(2000)]
    found = made(tmp_path, requests)
    assert found["trusted"]
    assert warnings(found) == [
        f"The generator was late by 501 ms at most: {which} of latencies may be due to it, not to the target."
    ]


def test_report_counts_requests_outside_all_shares_by_reason(tmp_path: Path) -> None:
    wrong = [refused(2.0 + n, outcome=Outcome.INVALID, reason="invalid_api_key", status=401) for n in range(3)]
    found = made(tmp_path, [answered(1.0), *wrong, refused(9.0, "free", Outcome.QUOTA, "limit-tokens")])
    assert found["totals"]["goodput"] == 1.0
    (told,) = warnings(found)
    assert told == ("4 of 5 requests are in no share: 3 invalid: invalid_api_key, 1 quota: limit-tokens.")
    assert headline(found).startswith("100.0% of 1 counted requests (of 5) were good")


def test_trace_that_ended_early_is_warned_of(tmp_path: Path) -> None:
    many, few = ([answered(float(n)) for n in range(0, 100, every)] for every in (1, 10))
    told = ["The traffic ended after 100 s of the wanted 150 s."]
    assert warnings(made(tmp_path, many, planned_s=150.0)) == told
    assert not warnings(made(tmp_path, many, planned_s=105.0))
    assert not warnings(made(tmp_path, few, planned_s=150.0)), "a gap may be as long"


def test_requests_served_as_another_tier_are_warned_of(tmp_path: Path) -> None:
    other = answered(1.0)
    other.served_tier, other.prompt_tokens = "free", 100
    told = warnings(made(tmp_path, [other]))
    assert any("tier gold were served as another tier (1 as free)" in text for text in told)
    assert any("counts 200.0% of the prompt tokens" in text for text in told)


def test_only_a_named_tier_is_reported_as_served_in_another_tier(tmp_path: Path) -> None:
    def told(folder: str, tier: str, with_policy: bool, unnamed: str | None) -> bool:
        one = answered(1.0, tier)
        one.served_tier = "standard"
        of = written(tmp_path / folder, [one], policy="policy.yaml" if with_policy else None, unnamed_tier=unnamed)
        found = report(read_run(of), read_rows(of), policy() if with_policy else None)
        return any("as another tier (1 as standard)" in text for text in warnings(found))

    assert not told("nobody", "default", False, "default")
    assert told("in the rows", "gold", False, "default")
    assert told("in a mix", "default", False, None)
    assert told("a policy, later", "gold", True, "gold")


def test_run_shorter_than_a_second_has_no_rates(tmp_path: Path) -> None:
    found = made(tmp_path, [answered(0.0)], seconds=0.0002)
    jsonschema.validate(found, SCHEMA)
    rates = ("offered_per_s", "answered_per_s", "good_per_s", "output_tokens_per_s")
    assert {found["totals"][name] for name in rates} == {None}
    assert (found["generator"]["cpu"], found["generator"]["chunks_per_s"]) == (None, None)
    assert found["over_time"]["offered_per_s"] == [None]
    assert found["totals"]["goodput"] == 1.0
    assert any("Only 0.2 ms of the test count" in text for text in warnings(found))
    out = Console(width=200, record=True, file=StringIO())
    print_report(found, out)
    told = "– requests/s offered, – of them good; ended while requests were sent: – answers/s, – output tokens/s;"
    assert told in out.export_text()
    assert "Nothing to draw" in page(found)


def test_terminal_says_which_answers_the_throughput_counts(tmp_path: Path) -> None:
    """In a short test it may be below the good requests/s, because the last answers end after the last arrival."""
    found = made(tmp_path, [answered(n + 0.5, ttft_s=0.9, tpot_s=0.0) for n in range(10)], seconds=10.0)
    out = Console(width=200, record=True, file=StringIO())
    print_report(found, out)
    told = "1 requests/s offered, 1 of them good; ended while requests were sent: 0.9 answers/s, 9.9 output tokens/s;"
    assert told in out.export_text()


def test_run_of_one_second_has_rates(tmp_path: Path) -> None:
    found = made(tmp_path, [answered(0.0)], seconds=1.0)
    assert (found["totals"]["offered_per_s"], found["over_time"]["offered_per_s"]) == (1.0, [1.0])
    assert not any("of the test count" in text for text in warnings(found))


def test_report_figures_are_rounded_for_reading() -> None:
    assert [time(s) for s in (None, 0.00031, 0.0123, 0.2774, 0.99961, 1.0, 12.345, 123.0)] == [
        "–", "0.31 ms", "12.3 ms", "277 ms", "1 s", "1 s", "12.3 s", "123 s",
    ]  # fmt: skip
    assert [share(x) for x in (None, 0.0, 1.0, 0.9823, 0.99996, 0.00004)] == [
        "–", "0.0%", "100.0%", "98.2%", "99.996%", "0.004%",
    ]  # fmt: skip


def test_report_quotes_the_target_once_for_requests_that_failed_alike(tmp_path: Path) -> None:
    bad = [refused(float(n), outcome=Outcome.INVALID, reason="too-long", status=400) for n in range(3)]
    for number, request in enumerate(bad):
        request.message = f"the prompt is too long <{number}>"
    found = made(tmp_path, [answered(5.0), *bad])
    out = StringIO()
    print_report(found, Console(file=out, width=300))
    assert out.getvalue().count("too-long (3): the prompt is too long <0>") == 1
    assert page(found).count("the prompt is too long &lt;0&gt;") == 1
    assert "<1>" not in out.getvalue()


def test_report_notes_token_counts_that_contradict_the_answers(tmp_path: Path) -> None:
    pieces, longer, fair = answered(1.0), answered(2.0), answered(3.0)
    pieces.output_tokens = 4
    longer.output_tokens = 900
    told = warnings(made(tmp_path, [pieces, longer, fair]))
    assert "1 answers arrived in more pieces than the tokens that the target counts." in told
    assert "The target counts more output tokens than were asked for in 1 answers." in told
    (tmp_path / "fair").mkdir()
    assert not [line for line in warnings(made(tmp_path / "fair", [fair])) if "counts" in line]


def test_latency_table_has_gaps_of_tokens_if_a_piece_has_several(tmp_path: Path) -> None:
    requests = [answered(float(n), tokens=40) for n in range(9)]
    for request in requests:
        request.chunks = 10
    (tmp_path / "one").mkdir()
    assert "ITL of tokens, 4 a piece" in page(made(tmp_path, requests))
    assert "ITL of tokens" not in page(made(tmp_path / "one"))
