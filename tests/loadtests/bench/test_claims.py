"""When a claim is met, missed, void or skipped, and when the bench fails."""

from __future__ import annotations

import pytest

from loadtests.bench.claims import CLAIMS, Claim, State, all_hold, judge, judge_all
from loadtests.bench.measures import MEASURES, held_kib
from loadtests.bench.rounds import held_faults
from loadtests.bench.section import Raw, Section

RATIO = Claim("requests", "tailgate", "nginx", 2.0)
BOUND = Claim("requests", "tailgate", None, 2.0)


def section(**values: list[float]) -> Section:
    return Section("requests", "CPU us", values=dict(values))


@pytest.mark.parametrize(("ours", "state"), [([2.0, 4.0, 6.0], State.MET), ([2.0, 4.2, 6.3], State.MISSED)])
def test_claimed_ratio_is_the_median_of_the_rounds(ours: list[float], state: State) -> None:
    verdict = judge(RATIO, section(tailgate=ours, nginx=[1.0, 2.0, 3.0]))
    assert (verdict.state, verdict.measured) == (state, pytest.approx(2.0 if state is State.MET else 2.1))


@pytest.mark.parametrize(("ours", "state"), [([1.0, 2.0, 9.0], State.MET), ([1.0, 2.1, 2.2], State.MISSED)])
def test_claimed_absolute_bound_holds_for_the_median_of_the_rounds(ours: list[float], state: State) -> None:
    assert judge(BOUND, section(tailgate=ours)).state is state


def test_bench_claim_is_void_after_errors_of_either_target() -> None:
    void = section(tailgate=[1.0], nginx=[1.0])
    void.errors["nginx"] = ["status 500"]
    verdict = judge(RATIO, void)
    assert (verdict.state, verdict.measured, verdict.why) == (State.VOID, None, "nginx: status 500")


def test_bench_claim_is_skipped_without_its_peer_and_void_if_the_gateway_fails_to_start() -> None:
    no_peer = section(tailgate=[1.0])
    no_peer.skipped["nginx"] = "no apt-get"
    assert judge(RATIO, no_peer).state is State.SKIPPED
    no_gateway = section(nginx=[1.0])
    no_gateway.skipped["tailgate"] = "it exited with 1"
    assert judge(RATIO, no_gateway).state is State.VOID
    # The measure was not asked for, so the run makes no claim.
    assert judge(RATIO, section(nginx=[1.0])).state is State.SKIPPED


def test_the_bench_fails_on_missed_and_void_claims_only() -> None:
    met = judge(BOUND, section(tailgate=[1.0]))
    skipped = judge(RATIO, section(tailgate=[1.0]))
    missed = judge(BOUND, section(tailgate=[3.0]))
    errors = section()
    errors.errors["tailgate"] = ["lost"]
    assert all_hold([met, skipped])
    assert not all_hold([met, missed])
    assert not all_hold([met, judge(BOUND, errors)])


def test_bench_judges_only_claims_of_measured_sections() -> None:
    verdicts = judge_all({"requests": section(tailgate=[1.0])})
    assert {verdict.claim.section for verdict in verdicts} == {"requests"}


def test_every_bench_claim_is_about_targets_of_its_section() -> None:
    for claim in CLAIMS:
        assert {claim.ours, claim.theirs} - {None} <= set(MEASURES[claim.section].targets)


def test_bench_round_with_errors_voids_its_target_for_all_rounds() -> None:
    one = section()
    for errors in ([], ["lost"], []):
        one.begin_round()
        one.take("a", {"errors": errors}, lambda raw: 1.0)
        one.take("b", {"errors": []}, lambda raw: 2.0)
    assert one.values == {"b": [2.0, 2.0, 2.0]}
    assert one.errors == {"a": ["lost"]}
    assert len(one.rounds) == 3


@pytest.mark.parametrize(
    ("alive", "events", "faults"),
    [
        (5000, 2, []),
        (4999, 2, ["4999 of 5000 streams were alive at the end"]),
        (5000, 1, ["a stream got 1 chunks where 2 were due"]),
    ],
)
def test_bench_claim_on_held_streams_needs_all_alive_and_served(alive: int, events: int, faults: list[str]) -> None:
    assert held_faults({"alive": alive, "fewest_events": events}, 5000, 2) == faults


def test_claimed_memory_is_the_growth_per_stream() -> None:
    raw: Raw = {"rss_before": 50 * 1024, "rss_after": 450 * 1024}
    assert held_kib(raw, 10) == 40.0
