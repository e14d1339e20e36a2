"""Synthetic traffic: rates, bursts, lengths, tiers and conversations are as specified."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice, pairwise
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
import scipy.stats

from gateway.sim.workload import arrival_process as pace
from gateway.sim.workload.arrivals import BLOCK_TOKENS, Arrival
from gateway.sim.workload.lengths import LENGTHS, Mixture, Part, Uniform
from gateway.sim.workload.load import load_workload, shipped
from gateway.sim.workload.synthetic import Sessions, Synthetic, TierTraffic

ONE = (TierTraffic("a", 1.0, Uniform(100, 100), Uniform(10, 10)),)


def times(
    rate: float, duration_s: float, *, cv: float = 1.0, shape: pace.ArrivalProcess | None = None, seed: int = 1
) -> list[float]:
    workload = Synthetic(rate, duration_s, ONE, cv, shape or pace.Constant())
    return [arrival.at for arrival in workload.arrivals(seed)]


@pytest.mark.parametrize("name", shipped())
def test_shipped_workload_yields_the_same_ordered_arrivals_for_a_seed(name: str) -> None:
    workload = load_workload(name, duration_s=60.0)
    first = list(workload.arrivals(3))
    assert first == list(workload.arrivals(3))
    assert first != list(workload.arrivals(4))
    assert all(0 <= a.at <= b.at < 60.0 for a, b in pairwise(first))


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_arrival_gaps_have_the_requested_mean_and_variation(cv: float) -> None:
    gaps = [b - a for a, b in pairwise(times(10, 4000, cv=cv))]
    assert fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert stdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.05, abs=1e-6)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_arrival_gaps_are_gamma_distributed_and_independent(cv: float) -> None:
    """The default is Poisson, with a cv of 1. Other processes of the same mean and variation are detected."""
    gaps = [b - a for a, b in pairwise(times(10, 2000, cv=cv))]
    shape = 1.0 / cv**2
    assert scipy.stats.kstest(gaps, "gamma", args=(shape, 0.0, 0.1 / shape)).pvalue > 0.01
    assert scipy.stats.spearmanr(gaps[:-1], gaps[1:]).pvalue > 0.01
    spread = math.sqrt(math.log(1.0 + cv**2))
    assert scipy.stats.kstest(gaps, "lognorm", args=(spread, 0.0, 0.1 * math.exp(-(spread**2) / 2))).pvalue < 1e-6


def test_diurnal_arrivals_are_poisson_at_every_hour() -> None:
    """By the time-change theorem: on a clock that runs with the rate, arrivals are a Poisson process."""
    period_s, depth, rate = 1000.0, 0.8, 10.0
    at = times(rate, period_s, shape=pace.Diurnal(period_s, depth))
    turn = period_s / (2 * math.pi)
    clock = [rate * (t - depth * turn * math.sin(t / turn)) for t in at]
    assert scipy.stats.kstest(clock, "uniform", args=(0.0, rate * period_s)).pvalue > 0.01
    assert scipy.stats.kstest([b - a for a, b in pairwise(clock)], "expon").pvalue > 0.01
    assert scipy.stats.kstest(at, "uniform", args=(0.0, period_s)).pvalue < 1e-6


def test_higher_arrival_rate_plays_the_same_gaps_faster() -> None:
    assert times(20, 50) == pytest.approx([at / 2 for at in times(10, 100)])


def test_bursts_arrive_at_their_rate_without_changing_the_mean_rate() -> None:
    shape = pace.OnOff(on_s=5, off_s=15, burst=3)
    assert len(times(5, 20_000, shape=shape)) / 20_000 == pytest.approx(5, rel=0.05)
    pieces = list(islice(shape.pieces(Random(1)), 2000))
    assert sorted({times for _, times in pieces}) == pytest.approx([1 / 3, 3.0])
    on = sum(for_s for for_s, times in pieces if times == 3.0)
    assert on / sum(for_s for for_s, _ in pieces) == pytest.approx(0.25, rel=0.1)


def test_burst_that_exceeds_the_mean_rate_of_the_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 4"):
        pace.OnOff(on_s=5, off_s=15, burst=4.1)


def test_steps_of_an_arrival_rate_are_square_and_repeat() -> None:
    at = times(50, 80, shape=pace.Steps(((20, 1.0), (10, 0.0), (10, 3.0))))
    counts = [
        sum(begin <= t < end for t in at) for begin, end in ((0, 20), (20, 30), (30, 40), (40, 60), (60, 70), (70, 80))
    ]
    assert counts[1] == counts[4] == 0
    assert counts == [pytest.approx(n, rel=0.15, abs=0) for n in (1000, 0, 1500, 1000, 0, 1500)]


def test_diurnal_rate_is_lowest_at_the_start_and_highest_in_the_middle() -> None:
    at = times(10, 1000, shape=pace.Diurnal(1000, 0.8))
    tenths = [sum(low <= t < low + 100 for t in at) for low in range(0, 1000, 100)]
    assert len(at) == pytest.approx(10_000, rel=0.05)
    assert tenths[0] < 0.4 * 1000 < 1.6 * 1000 < tenths[4]


# Mean, median and p99 of the traces, from docs/ and the dataset's authors.
AZURE = {
    "azure-conversation-prompt": (1155, 1020, 4142),
    "azure-conversation-answer": (211, 129, 601),
    "azure-code-prompt": (2048, 1469, 7436),
    "azure-code-answer": (28, 13, 252),
}


@pytest.mark.parametrize("name", AZURE)
def test_fitted_lengths_have_the_published_figures_of_the_trace(name: str) -> None:
    fitted = LENGTHS[name]
    assert isinstance(fitted, Mixture)
    found = (fitted.mean(), fitted.quantile(0.5), fitted.quantile(0.99))
    assert found == pytest.approx(AZURE[name], rel=0.03)


def test_drawn_lengths_follow_the_mixture() -> None:
    mixture = Mixture((Part(0.7, 100, 0.5), Part(0.3, 1000, 0.2)), most=1200, least=20)
    draw = Random(1)
    drawn = sorted(mixture.draw(draw) for _ in range(20_000))
    assert fmean(drawn) == pytest.approx(mixture.mean(), rel=0.02)
    for q in (0.1, 0.5, 0.9):
        assert drawn[int(q * 20_000)] == pytest.approx(mixture.quantile(q), rel=0.05)
    assert drawn[0] >= 20
    assert drawn[-1] == 1200


def test_tiers_and_tenants_get_their_shares_of_the_traffic() -> None:
    shares = (
        TierTraffic(
            "gold", 1, Uniform(1, 9), Uniform(1, 9), tenants=2, skew=1.0, streamed=0.5, max_tokens=64, model="m"
        ),
        TierTraffic("iron", 3, Uniform(10, 19), Uniform(10, 19)),
    )
    arrivals = list(Synthetic(100, 200, shares).arrivals(1))
    gold = [a for a in arrivals if a.tier == "gold"]
    assert len(gold) / len(arrivals) == pytest.approx(0.25, rel=0.05)
    assert sum(a.tenant == "gold-1" for a in gold) / len(gold) == pytest.approx(2 / 3, rel=0.05)
    assert sum(a.stream for a in gold) / len(gold) == pytest.approx(0.5, rel=0.1)
    assert {(a.model, a.max_tokens) for a in gold} == {("m", 64)}
    assert all((a.prompt_tokens < 10) == (a.tier == "gold") for a in arrivals)


def conversations(**more: Any) -> list[Arrival]:
    sessions = Sessions(part=0.5, turns=4, think_s=10, system_prompts=2, system_tokens=1024)
    share = TierTraffic("a", 1, Uniform(100, 300), Uniform(50, 150), tenants=3)
    return list(Synthetic(10, 3000, (share,), sessions=replace(sessions, **more)).arrivals(1))


def test_workload_conversation_grows_and_repeats_its_prefix() -> None:
    talks: dict[int, list[Arrival]] = {}
    for arrival in conversations():
        if arrival.session is not None:
            talks.setdefault(arrival.session, []).append(arrival)
    assert fmean(map(len, talks.values())) == pytest.approx(4, rel=0.1)
    for turns in talks.values():
        assert len({(t.tier, t.tenant) for t in turns}) == 1
        for before, after in pairwise(turns):
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert after.prefix[: len(before.prefix)] == before.prefix
        assert all(len(t.prefix) == t.prompt_tokens // BLOCK_TOKENS for t in turns)
    # Blocks inside the two system prompts are shared, no other is.
    assert len({t[0].prefix[:2] for t in talks.values()}) == 2
    own = [block for t in talks.values() for block in t[-1].prefix[2:]]
    assert len(own) == len(set(own))


def test_workload_conversations_keep_the_rate_and_end_before_they_are_too_long() -> None:
    assert len(conversations()) / 3000 == pytest.approx(10, rel=0.1)
    longest = max(conversations(most_tokens=3000), key=lambda a: a.prompt_tokens + a.output_tokens)
    assert longest.prompt_tokens + longest.output_tokens <= 3000


def test_rate_of_one_tier_does_not_change_request_lengths() -> None:
    workload = Synthetic(10, math.inf, (*ONE, TierTraffic("b", 1.0, Uniform(1, 1000), Uniform(1, 9))))
    slow, fast = (list(islice(replace(workload, rate_per_s=rate).arrivals(5), 200)) for rate in (10.0, 30.0))
    assert [(a.tier, a.prompt_tokens, a.output_tokens) for a in slow] == [
        (a.tier, a.prompt_tokens, a.output_tokens) for a in fast
    ]
