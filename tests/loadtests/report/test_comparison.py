"""Comparisons: B is better than A only if the difference is beyond chance."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from typer.testing import CliRunner

from gateway.policy.load import load_text
from loadtests.__main__ import app
from loadtests.replay.request import Outcome, Request
from loadtests.report.bootstrap import Blocks, blocks_for, quantiles, ranged, shares
from loadtests.report.comparison import Comparison, compare, headline
from loadtests.report.tested import read_test
from tests.loadtests.report.made import POLICY, answered, policy, refused, written


def traffic(missed: float, *, seed: int, slower: float = 1.0, count: int = 2000) -> list[Request]:
    """Requests at fixed times: a share is refused, the others are answered after varying times."""
    draw = Random(seed)
    return [
        refused(0.05 * n) if draw.random() < missed else answered(0.05 * n, ttft_s=slower * 0.05 * (1 + draw.random()))
        for n in range(count)
    ]


def compared(folder: Path, a: list[Request], b: list[Request]) -> Comparison:
    tests = [read_test(written(folder / name, of), policy()) for name, of in (("a", a), ("b", b))]
    return compare(*tests)


def policy_in(folder: Path) -> str:
    file = folder / "policy.yaml"
    file.write_text(POLICY)
    return str(file)


def verdicts(of: Comparison) -> dict[str, str]:
    return {row.name: row.verdict for row in of.rows}


def test_tests_too_short_to_have_a_rate_are_compared_without_one(tmp_path: Path) -> None:
    tests = [read_test(written(tmp_path / name, [answered(0.0)], seconds=0.01), policy()) for name in "ab"]
    found = compare(*tests)
    assert not any("Not the same load" in note for note in found.notes)
    assert headline(found).startswith("No verdict: too short to judge")


def test_comparison_reports_a_chance_difference_as_even(tmp_path: Path) -> None:
    found = compared(tmp_path, traffic(0.1, seed=1), traffic(0.1, seed=2))
    assert found.paired
    assert set(verdicts(found).values()) <= {"even", ""}
    assert headline(found).startswith("No difference in goodput")


def test_runs_with_other_tiers_are_not_paired(tmp_path: Path) -> None:
    def of(tiers: str) -> list[Request]:
        return [answered(0.05 * n, {"g": "gold", "f": "free"}[tiers[n % len(tiers)]]) for n in range(2000)]

    assert compared(tmp_path / "alike", of("gf"), of("gf")).paired
    assert not compared(tmp_path / "more", of("gf"), of("gff")).paired
    assert not compared(tmp_path / "turned", of("gf"), of("fg")).paired


def test_comparison_notes_differing_client_behaviour(tmp_path: Path) -> None:
    tests = [
        read_test(written(tmp_path / name, traffic(0.1, seed=1), retries=retries), policy())
        for name, retries in (("a", 0), ("b", 3))
    ]
    assert (
        "Different requests: retries of clients 0 and 3, which makes a difference by itself." in compare(*tests).notes
    )


def test_comparison_pairs_simultaneous_requests_whatever_their_order_of_ending(tmp_path: Path) -> None:
    a, b = (written(tmp_path / name, [answered(n // 2 / 20) for n in range(4000)]) for name in "ab")
    rows = np.load(b / "requests.npy")
    rows["prompt_tokens"][::2] = rows["output_wanted"][::2] = 7
    np.save(a / "requests.npy", rows)
    rows[0::2], rows[1::2] = rows[1::2].copy(), rows[0::2].copy()
    np.save(b / "requests.npy", rows)
    assert compare(*(read_test(folder, policy()) for folder in (a, b))).paired


def test_comparison_finds_a_difference_and_its_size(tmp_path: Path) -> None:
    found = compared(tmp_path, traffic(0.1, seed=1), traffic(0.2, seed=5, slower=1.5))
    told = verdicts(found)
    assert (told["goodput"], told["shed"], told["TTFT p50"], told["TTFT p99"]) == ("worse",) * 4
    goodput, ttft = found.rows[0].change, next(row.change for row in found.rows if row.name == "TTFT p50")
    assert goodput is not None
    assert ttft is not None
    assert goodput.low < -0.1 < goodput.high < 0
    assert ttft.low < 1.5 < ttft.high
    assert headline(found).startswith("b is worse than a: -")


def test_comparison_treats_requests_that_fail_together_as_correlated(tmp_path: Path) -> None:
    # The same number of refusals, scattered and in one stretch of time: the second is weaker evidence.
    a = traffic(0.0, seed=1)
    scattered = [refused(0.05 * n) if n % 20 == 0 else answered(0.05 * n) for n in range(2000)]
    together = [refused(0.05 * n) if 500 <= n < 600 else answered(0.05 * n) for n in range(2000)]
    widths = []
    for name, b in (("scattered", scattered), ("together", together)):
        change = compared(tmp_path / name, a, b).rows[0].change
        assert change is not None
        widths.append(change.high - change.low)
    assert widths[1] > 5 * widths[0]


def test_bootstrap_stretches_are_longer_than_answers(tmp_path: Path) -> None:
    def blocks(name: str, slow_s: float) -> Blocks:
        slow = [answered(0.5 * n, ttft_s=slow_s * (1 + n % 2), tpot_s=0.0) for n in range(200)]
        quick = [answered(0.5 * n, ttft_s=0.01, tpot_s=0.0) for n in range(200)]
        tests = [read_test(written(tmp_path / name / of, rows), policy()) for of, rows in (("a", slow), ("b", quick))]
        return blocks_for(100.0, *(test.judged for test in tests))

    assert [(blocks(f"{s}", s).count, blocks(f"{s}", s).too_few) for s in (0.01, 1.0, 2.0, 60.0)] == [
        (40, False), (25, False), (12, False), (1, True),
    ]  # fmt: skip


def test_bootstrap_interval_of_few_stretches_is_as_wide_as_students() -> None:
    blocks, each = Blocks(10, 1.0), 1000
    good = np.array([500, 520, 480, 560, 440, 510, 490, 530, 470, 500])
    block_of = np.repeat(np.arange(10), each)
    part = np.concatenate([np.arange(each) < count for count in good])
    whole = np.ones(10 * each, dtype=np.bool_)
    found = ranged(shares(blocks, block_of, part, whole, blocks.draws(1).astype(np.float64)))
    assert found is not None
    assert found.value == 0.5
    wanted = 2 * 2.262 * np.std(good / each, ddof=1) / np.sqrt(10)
    assert found.high - found.low == pytest.approx(wanted, rel=0.06)


def test_run_shorter_than_its_answers_is_not_judged(tmp_path: Path) -> None:
    a, b = ([answered(0.05 * n, ttft_s=ttft_s, tpot_s=0.5) for n in range(2000)] for ttft_s in (0.1, 0.9))
    found = compared(tmp_path, a, b)
    assert headline(found).startswith("No verdict: too short to judge. ")
    assert "10 stretches of 23.6 s, 236 s in all" in headline(found)
    assert set(verdicts(found).values()) == {""}
    ttft = next(row.change for row in found.rows if row.name == "TTFT p50")
    assert ttft is not None
    assert ttft.value == pytest.approx(9.0, rel=0.03)
    folders = [str(tmp_path / name) for name in "ab"]
    shown = CliRunner().invoke(app, ["compare", *folders, "--policy", policy_in(tmp_path)]).stdout
    assert f"x {ttft.value:.2f}  \n" in shown
    assert "nan" not in shown


def test_latencies_of_zero_count_in_quantiles() -> None:
    # Answers in one piece have a TPOT of 0: nine of ten here.
    values = np.array([0.0] * 9 + [0.1])
    once = np.ones((1, 1))
    medians = quantiles(Blocks(1, 1.0), np.zeros(10, dtype=np.int64), values, 0.5, once)
    assert medians[0] < 1e-4


def test_comparison_of_unequal_loads_says_so(tmp_path: Path) -> None:
    notes = " ".join(compared(tmp_path, traffic(0.1, seed=1), traffic(0.1, seed=2, count=1000)).notes)
    assert "Not the same load: 20 and 10 requests/s" in notes


@pytest.mark.parametrize(("seed", "noted"), [(1, True), (2, False)])
def test_comparison_notes_prompts_that_an_earlier_test_left_in_caches(seed: int, noted: bool, tmp_path: Path) -> None:
    tests = []
    for name, own_seed, cached in (("a", 1, 0), ("b", seed, 20)):
        sent = traffic(0.0, seed=1)
        for request in sent:
            request.cached_tokens = cached
        tests.append(read_test(written(tmp_path / name, sent, seed=own_seed), policy()))
    assert ("Prefix caches held 0.0% and 40.0%" in " ".join(compare(*tests).notes)) is noted


def test_comparison_notes_requests_that_count_in_no_share(tmp_path: Path) -> None:
    wrong = [refused(99.0 + 0.01 * n, outcome=Outcome.INVALID, reason="invalid_api_key", status=401) for n in range(5)]
    notes = compared(tmp_path, traffic(0.1, seed=1), traffic(0.1, seed=2) + wrong).notes
    told = "5 of 2,005 requests are in no share: 5 invalid: invalid_api_key."
    assert [note for note in notes if "in no share" in note] == [f"b: {told}"]


def test_compare_command_writes_page_and_json(tmp_path: Path) -> None:
    file = policy_in(tmp_path)
    for name, of in (("a", traffic(0.1, seed=1)), ("b", traffic(0.3, seed=2))):
        written(tmp_path / name, of)
    folders = [str(tmp_path / name) for name in "ab"]
    page = tmp_path / "page.html"
    found = CliRunner().invoke(app, ["compare", *folders, "--policy", file, "--out", str(page), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["verdict"].startswith("b is worse than a")
    assert page.read_text().count("<svg") == 4
    shown = CliRunner().invoke(app, ["compare", *folders, "--policy", file])
    assert "goodput" in shown.stdout
    assert "worse" in shown.stdout
    assert re.search(r"goodput .* -\d+\.\d pp \(-\d", shown.stdout), "percentage points"


def reported(folder: Path, policy: str | None) -> str:
    """A test whose report was made with a policy that no longer exists."""
    written(folder, traffic(0.1, seed=1))
    file = folder / "policy.yaml"
    file.write_text(policy or "")
    given = ["--no-policy"] if policy is None else ["--policy", str(file)]
    made = CliRunner().invoke(app, ["report", str(folder), *given])
    assert made.exit_code == 0, made.output
    file.unlink()
    return str(folder)


def test_comparison_of_different_objectives_gives_no_verdict(tmp_path: Path) -> None:
    strict = POLICY.replace("{p50: 200ms, p99: 1s}", "{p99: 60ms}")
    folders = [reported(tmp_path / "a", strict), reported(tmp_path / "b", None)]
    found = json.loads(CliRunner().invoke(app, ["compare", *folders, "--json"]).stdout)
    assert found["verdict"].startswith("No verdict: they were held against different objectives (of tier gold)")
    assert (found["rows"][0]["change"], found["rows"][0]["verdict"]) == (None, "")
    file = tmp_path / "policy.yaml"
    file.write_text(strict)
    again = json.loads(CliRunner().invoke(app, ["compare", *folders, "--policy", str(file), "--json"]).stdout)
    assert again["verdict"].startswith("No difference in goodput")


def test_comparison_with_a_late_generator_gives_no_verdict(tmp_path: Path) -> None:
    late = [answered(0.05 * n, late_s=2.0 if n % 8 == 0 else 0.001, ttft_s=2.1) for n in range(2000)]
    for name, of in (("a", traffic(0.1, seed=1)), ("b", late)):
        written(tmp_path / name, of)
    folders = [str(tmp_path / name) for name in "ab"]
    found = CliRunner().invoke(app, ["compare", *folders, "--policy", policy_in(tmp_path), "--json"])
    told = json.loads(found.stdout)
    assert found.exit_code == 3
    assert told["verdict"].startswith("No verdict: the generator fell behind in b,")
    assert all((row["change"], row["verdict"]) == (None, "") for row in told["rows"])
    shown = CliRunner().invoke(app, ["compare", *folders, "--policy", policy_in(tmp_path)])
    assert (shown.exit_code, "worse" in shown.stdout) == (3, False)
    allowed = CliRunner().invoke(app, ["compare", *folders, "--policy", policy_in(tmp_path), "--allow-late"])
    assert (allowed.exit_code, allowed.stdout) == (0, shown.stdout)


def test_an_open_loop_and_a_closed_one_are_not_compared(tmp_path: Path) -> None:
    both = {"open": None, "closed": 10}
    tests = [written(tmp_path / name, traffic(0.1, seed=1), clients=clients) for name, clients in both.items()]
    found = compare(*(read_test(test, policy()) for test in tests))
    assert headline(found).startswith("No verdict: one is a closed loop")
    assert {row.change for row in found.rows} == {None}


def test_comparison_uses_the_objectives_of_each_report(tmp_path: Path) -> None:
    # The files are gone, so only the reports have objectives.
    strict = POLICY.replace("{p50: 200ms, p99: 1s}", "{p99: 60ms}")
    folders = [reported(tmp_path / name, strict) for name in "ab"]
    found = json.loads(CliRunner().invoke(app, ["compare", *folders, "--json"]).stdout)
    assert found["verdict"].startswith("No difference in goodput")
    assert found["rows"][0]["a"]["value"] < 0.5
    assert read_test(Path(folders[0]), None).slos() == {"gold": load_text(strict, "policy.yaml").tiers["gold"].slo}


def test_comparison_distinguishes_run_folders_of_the_same_name(tmp_path: Path) -> None:
    for name, of in (("<i>1", traffic(0.1, seed=1)), ("T2", traffic(0.3, seed=2))):
        written(tmp_path / name / "tailgate", of, policy=None, interrupted=True)
    folders = [str(tmp_path / name / "tailgate") for name in ("<i>1", "T2")]
    page = tmp_path / "page.html"
    found = json.loads(CliRunner().invoke(app, ["compare", *folders, "--out", str(page), "--json"]).stdout)
    assert (found["a"], found["b"]) == ("<i>1/tailgate", "T2/tailgate")
    assert found["verdict"].startswith("T2/tailgate is worse than <i>1/tailgate")
    text = page.read_text()
    assert "<i>1" not in text
    for drawing in re.findall(r"<figure>.*?</figure>", text):
        assert "&lt;i&gt;1/tailgate</li>" in drawing
        assert "T2/tailgate</li>" in drawing


@pytest.mark.parametrize(("out", "told"), [(".", "that is a folder"), ("no/c.html", "the folder no does not exist")])
def test_unwritable_comparison_page_exits_with_2(
    out: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["compare", "a", "b", "--out", out])
    assert (found.exit_code, f"--out: cannot write {out}: {told}" in found.stderr) == (2, True), found.stderr


@pytest.mark.parametrize("folders", [("nothing-here", "nor-here"), ("nothing-here", "nothing-here")])
def test_unreadable_run_folder_exits_with_2_and_is_named(folders: tuple[str, str]) -> None:
    found = CliRunner().invoke(app, ["compare", *folders])
    assert found.exit_code == 2
    assert folders[0] in found.stderr


@pytest.mark.parametrize("file", ["report.json", "requests.npy"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"about": 1}', b"\x93NUMPY\x01\x00", b"PK\x03\x04"])
def test_comparison_names_a_truncated_file(file: str, content: bytes, tmp_path: Path) -> None:
    folders = [written(tmp_path / name, traffic(0.1, seed=1)) for name in "ab"]
    (folders[0] / file).write_bytes(content)
    found = CliRunner().invoke(app, ["compare", *map(str, folders)])
    assert (found.exit_code, f"{folders[0] / file}: is no" in found.stderr) == (2, True), found.stderr
