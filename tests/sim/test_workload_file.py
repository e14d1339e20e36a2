"""Workload files: valid contents, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gateway.policy.errors import PolicyErrors
from gateway.sim.workload import arrival_process as pace
from gateway.sim.workload.lengths import LENGTHS, Mixture, Part, Uniform
from gateway.sim.workload.load import load_text, load_workload, shipped
from gateway.sim.workload.synthetic import Sessions, Synthetic
from gateway.sim.workload.workload_file import (
    ArrivalsSection,
    DiurnalSection,
    LengthsSection,
    OnOffSection,
    SessionsSection,
    StepSection,
    TierShare,
    WorkloadFile,
)

MIN = """
apiVersion: tailgate/v1
kind: Workload
rate: 120/min
duration: 1m30s
prompt_tokens: azure-conversation-prompt
output_tokens: 20
tiers:
  a: {share: 30%}
  b: {share: 70%, prompt_tokens: {median: 100, sigma: 0.5, most: 900}, output_tokens: {least: 5, most: 9}}
"""


def errors(text: str) -> list[str]:
    with pytest.raises(PolicyErrors) as raised:
        load_text(text, "w.yaml")
    return [str(error) for error in raised.value.errors]


def test_workload_file_fields_become_the_workload() -> None:
    made = load_text(MIN, "w.yaml")
    assert (made.rate_per_s, made.duration_s, made.cv, made.sessions) == (2.0, 90.0, 1.0, None)
    a, b = made.shares
    assert (a.tier, a.part, a.prompt, a.answer) == ("a", 0.3, LENGTHS["azure-conversation-prompt"], Uniform(20, 20))
    assert (b.prompt, b.answer) == (Mixture((Part(1.0, 100.0, 0.5),), 900), Uniform(5, 9))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("on_off: {on: 5s, off: 15s, burst: 250%}", pace.OnOff(5, 15, 2.5)),
        ("steps: [{last: 10s, times: 1}, {last: 5s, times: 2}]", pace.Steps(((10, 1), (5, 2)))),
        ("diurnal: {period: 24h}", pace.Diurnal(86400, 0.5)),
    ],
)
def test_every_shape_of_arrivals_can_be_written_in_a_workload_file(text: str, shape: pace.ArrivalProcess) -> None:
    made = load_text(f"{MIN}arrivals: {{cv: 2, {text}}}\n", "w.yaml")
    assert (made.cv, made.shape) == (2.0, shape)


def test_conversations_can_be_written_in_a_workload_file() -> None:
    made = load_text(f"{MIN}sessions: {{share: 25%, turns: 3, think: 20s, system_tokens: 512}}\n", "w.yaml")
    assert made.sessions == Sessions(0.25, 3.0, 20.0, 1, 512)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("rate: 120/min", "rate: 2"), "w.yaml:4: rate: 2 has no unit: write 2/min or 2/s"),
        (("duration: 1m30s\n", ""), "w.yaml:2: duration: is missing: time in which requests arrive"),
        (("tiers:", "teirs:"), "w.yaml:8: teirs: unknown field: did you mean tiers?"),
        (("kind: Workload", "kind: Policy"), "w.yaml:3: kind: Policy is not supported: write kind: Workload"),
        (("azure-conversation-prompt", "azure-conversatoin-prompt"), "did you mean azure-conversation-prompt?"),
        (("output_tokens: 20", "output_tokens: 0"), "w.yaml:7: output_tokens: 0 is not a length"),
        (("sigma: 0.5, ", ""), "w.yaml:10: tiers.b.prompt_tokens: median and sigma describe a lognormal together"),
        (
            ("{least: 5, most: 9}", "{least: 9, most: 5}"),
            "tiers.b.output_tokens: least is above most (9 > 5): swap them",
        ),
        (("{least: 5, most: 9}", "{least: 9}"), "tiers.b.output_tokens: has no lengths"),
        (("share: 30%", "share: 0%"), "tiers.a.share: 0% is too small: it must be more than 0"),
        (("tiers:", "arrivals: {on_off: {on: 5s, off: 5s, burst: 3}}\ntiers:"), "arrivals.on_off: a burst of 3"),
        (("tiers:", "arrivals: {steps: [{last: 1s, times: 0}]}\ntiers:"), "arrivals: all steps have rate 0"),
        (
            ("tiers:", "arrivals: {diurnal: {period: 1h}, steps: [{last: 1s, times: 1}]}\ntiers:"),
            "arrivals: has steps and diurnal: keep one of them",
        ),
    ],
)
def test_bad_workload_field_is_refused_with_line_and_field(change: tuple[str, str], told: str) -> None:
    assert change[0] in MIN
    assert any(told in error for error in errors(MIN.replace(*change, 1)))


def test_policy_file_is_refused_as_a_workload() -> None:
    told = ["w.yaml:2: kind: Policy is not supported: write kind: Workload"]
    assert errors("apiVersion: tailgate/v1\nkind: Policy\npools: {}\n") == told


def test_error_for_an_empty_workload_file_says_how_to_begin() -> None:
    assert errors("# nothing\n") == ["w.yaml:1: is empty: write a workload that begins with apiVersion: tailgate/v1"]


def test_unknown_workload_is_refused_and_known_ones_are_found_by_name_or_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MIN)
    made = load_workload(file, rate_per_s=7.0, duration_s=3.0)
    assert isinstance(made, Synthetic)
    assert (made.rate_per_s, made.duration_s) == (7.0, 3.0)
    assert isinstance(load_workload("chat"), Synthetic)
    with pytest.raises(PolicyErrors, match=r"^chatt: is neither a file nor a shipped workload: did you mean chat\?"):
        load_workload("chatt")
    with pytest.raises(PolicyErrors, match="cannot be read: No such file"):
        load_workload(tmp_path / "none.yaml")


def test_workload_reference_lists_every_field_and_every_fitted_length() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "workloads.md").read_text()
    sections = [WorkloadFile, ArrivalsSection, OnOffSection, StepSection, DiurnalSection, TierShare, SessionsSection]
    for section in (*sections, LengthsSection):
        for name in cast(Any, section).model_fields:
            assert name in page, f"docs/reference/workloads.md does not tell of {name}"
    for name, lengths in LENGTHS.items():
        assert isinstance(lengths, Mixture)
        row = f"| `{name}` | {lengths.mean():.0f} | {lengths.quantile(0.5)} | {lengths.quantile(0.99)} |"
        assert row in page
    assert all(f"`{name}`" in page for name in shipped())
