"""For any text, few prompts are longer than the high estimate, and few are shorter than the low one."""

import math
from collections.abc import Callable
from random import Random

import pytest

from gateway.core.estimators.prompt_length import (
    MAX,
    PRIOR_HIGH,
    PRIOR_LOW,
    TEMPLATE_TOKENS,
    PromptEstimator,
    QuantileTracker,
)
from tests.footprint import footprint

from .made import policy, pool
from .playbook import play

Text = Callable[[Random], float]

# Tokens per byte of a prompt.
TEXTS: dict[str, Text] = {
    "english": lambda r: r.gauss(0.25, 0.02),
    "code": lambda r: r.gauss(0.33, 0.05),
    "chinese": lambda r: r.gauss(0.36, 0.03),
    "base64": lambda r: r.gauss(0.72, 0.05),
    "dense tokenizer": lambda r: r.gauss(0.08, 0.01),
    "mixed": lambda r: r.gauss(0.25, 0.02) if r.random() < 0.8 else r.gauss(0.36, 0.03),
    "long tail": lambda r: 0.2 * math.exp(r.gauss(0.0, 0.3)),
    "always the same": lambda r: 0.25,
}


def prompts(text: Text, count: int, seed: int, *, shortest: int = 1024, longest: int = 2047) -> list[tuple[int, int]]:
    """(bytes, tokens) of prompts with log-uniform lengths."""
    random = Random(seed)
    sizes = [int(math.exp(random.uniform(math.log(shortest), math.log(longest)))) for _ in range(count)]
    return [(size, max(1, round(size * max(0.01, text(random))))) for size in sizes]


def learned(text: Text, count: int) -> PromptEstimator:
    estimator = PromptEstimator()
    for size, tokens in prompts(text, count, seed=1):
        estimator.learn("m", size, tokens)
    return estimator


def misses(estimator: PromptEstimator, text: Text, count: int = 4000) -> tuple[float, float]:
    """The shares of prompts below the low and above the high estimate, while the model learns."""
    below = above = 0
    for size, tokens in prompts(text, count, seed=2):
        low, high = estimator.estimate("m", size)
        below += tokens < low
        above += tokens > high
        estimator.learn("m", size, tokens)
    return below / count, above / count


@pytest.mark.parametrize("name", TEXTS)
def test_prompt_estimates_miss_about_2_percent_of_prompts_on_each_side(name: str) -> None:
    below, above = misses(learned(TEXTS[name], 8000), TEXTS[name])
    assert below <= 0.03
    assert above <= 0.03
    if name not in ("always the same", "mixed"):
        assert below >= 0.01
        assert above >= 0.01


@pytest.mark.parametrize("name", TEXTS)
def test_prompt_estimates_are_as_narrow_as_the_text_allows(name: str) -> None:
    estimator, text = learned(TEXTS[name], 8000), TEXTS[name]
    ratios = sorted(tokens / size for size, tokens in prompts(text, 8000, seed=3))
    low, high = estimator.estimate("m", 2000)
    assert high <= 2000 * ratios[int(0.998 * len(ratios))] * 1.05
    assert low >= 2000 * ratios[int(0.002 * len(ratios))] * 0.95


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "dense tokenizer"])
def test_long_prompts_are_seldom_undercounted_from_the_first_hundred_on(name: str) -> None:
    _, above = misses(learned(TEXTS[name], 100), TEXTS[name], 1000)
    assert above <= 0.05


def test_prompt_estimate_follows_a_change_of_text() -> None:
    estimator = learned(TEXTS["english"], 8000)
    for size, tokens in prompts(TEXTS["chinese"], 1000, seed=4):
        estimator.learn("m", size, tokens)
    _, above = misses(estimator, TEXTS["chinese"], 2000)
    assert above <= 0.04


# ---- buckets


def test_prompt_estimate_without_samples_is_wide_on_both_sides() -> None:
    assert PromptEstimator().estimate("m", 10_000) == (10_000 * PRIOR_LOW, 10_000 * PRIOR_HIGH + TEMPLATE_TOKENS)


def test_empty_prompt_is_estimated_at_up_to_the_template_tokens() -> None:
    assert PromptEstimator().estimate("m", 0) == (0, TEMPLATE_TOKENS)


def test_overhead_of_short_prompts_is_not_added_to_long_ones() -> None:
    estimator = PromptEstimator()
    for number in range(5000):
        estimator.learn("m", 20 + number % 10, 25)
        estimator.learn("m", 40_000 + number, (40_000 + number) // 4)
    assert estimator.estimate("m", 24)[1] >= 25
    assert estimator.estimate("m", 40_000)[1] <= 40_000 * 0.27


def test_unseen_prompt_length_is_estimated_from_the_next_shorter_ones() -> None:
    estimator = PromptEstimator()
    for _ in range(5000):
        estimator.learn("m", 1500, 300)
    low, high = estimator.estimate("m", 6000)
    assert (low, high) == (pytest.approx(1200, rel=0.1), pytest.approx(1200, rel=0.1))
    assert estimator.estimate("m", 1500 * 2**6)[1] == int(1500 * 2**6 * PRIOR_HIGH) + TEMPLATE_TOKENS
    assert estimator.estimate("m", 700)[1] == int(700 * PRIOR_HIGH) + TEMPLATE_TOKENS


def test_prompt_estimates_are_learned_by_model() -> None:
    estimator = learned(TEXTS["base64"], 1000)
    assert estimator.estimate("other", 2000) == PromptEstimator().estimate("other", 2000)


@pytest.mark.parametrize(("size", "tokens"), [(0, 10), (10, 0), (-1, 5), (5, -1)])
def test_implausible_prompt_counts_are_not_learned(size: int, tokens: int) -> None:
    estimator = PromptEstimator()
    estimator.learn("m", size, tokens)
    assert estimator.estimate("m", 10) == PromptEstimator().estimate("m", 10)


def test_low_prompt_estimate_is_never_above_the_high_one() -> None:
    random, estimator = Random(5), PromptEstimator()
    for _ in range(3000):
        size = random.randint(1, 3000)
        estimator.learn("m", size, random.randint(1, 4 * size))
        low, high = estimator.estimate("m", random.randint(0, 10_000))
        assert low <= high


# ---- the tracker


@pytest.mark.parametrize("quantile", [0.02, 0.5, 0.9, 0.98])
def test_quantile_tracker_converges_to_its_quantile(quantile: float) -> None:
    random, tracker = Random(6), QuantileTracker(quantile, prior=1.0)
    samples = [math.exp(random.gauss(0.0, 0.5)) for _ in range(30_000)]
    for sample in samples:
        tracker.add(sample)
    below = sum(sample <= tracker.value for sample in samples) / len(samples)
    assert below == pytest.approx(quantile, abs=0.015)


def test_each_model_of_a_catch_all_has_its_own_ratio() -> None:
    rules = policy(pool("p", "r1", slots=None))
    story, alone = play(rules), PromptEstimator()
    for number in range(50):
        for model, tokens in (("dense", 40), ("wordy", 160)):
            name = f"{model}-{number}"
            alone.learn(model, 400, tokens)
            story.arrives(name, asked_model=model, prompt=None, prompt_bytes=400)
            story.served(name, prompt_tokens=tokens).whatever()
    prompts = story.controller.prompts
    assert prompts.estimate("dense", 400) == alone.estimate("dense", 400)
    assert prompts.estimate("wordy", 400) == alone.estimate("wordy", 400)
    assert prompts.estimate("m", 400) == PromptEstimator().estimate("m", 400)


def test_prompt_ratios_of_invented_model_names_are_forgotten() -> None:
    estimator = PromptEstimator()
    for number in range(MAX):
        estimator.learn(f"model-{number}", 400, 400)
    full = footprint(estimator)
    estimator.learn(f"model-{MAX}", 400, 400)
    assert estimator.estimate("model-0", 400) == PromptEstimator().estimate("model-0", 400)
    assert estimator.estimate(f"model-{MAX}", 400)[1] > 200
    for number in range(10 * MAX):
        estimator.learn(f"other-{number}", 400, 400)
    assert footprint(estimator) <= 1.2 * full
