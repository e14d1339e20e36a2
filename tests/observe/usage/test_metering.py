"""The rules of metering: who pays for which tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.core.history import AttemptHistory, History
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.observe.requests.row import RequestRow
from gateway.observe.usage.metering import Sums, meter
from gateway.observe.usage.report import Question, report
from gateway.policy import load
from gateway.settings import Settings
from loadtests.emulator import Emulator
from tests.observe.requests.test_ring import ended
from tests.scorecard.bodies import MINIMAL
from tests.scorecard.policies import rules


def attempt(
    number: int, cached: int | None = None, reasoning: int | None = None, held_s: float = 2.0
) -> AttemptHistory:
    told = AttemptHistory("short", f"r{number}", number > 1, AttemptOutcome.COMPLETE.value, 100.0, 100.0 + held_s)
    told.id, told.prompt_tokens = number, 100
    told.cached_tokens, told.reasoning_tokens = cached, reasoning
    return told


def metered(*attempts: AttemptHistory, answered_by: int = 1, **changes: Any) -> Sums:
    """What one request used, of 100 prompt and 57 output tokens unless it says otherwise."""
    history = History(list(attempts), 120, 256)
    history.answered_by = answered_by
    sums = Sums()
    meter(RequestRow(ended("a", attempts=len(attempts), history=history, **changes)), sums)
    return sums


def tokens(sums: Sums) -> tuple[int, int]:
    return sums.prompt_tokens, sums.output_tokens


def test_good_request_pays_for_its_prompt_and_its_answer() -> None:
    sums = metered(attempt(1))
    assert tokens(sums) == (100, 57)
    assert (sums.requests, sums.good, sums.good_tokens, sums.estimated_tokens) == (1, 1, 157, 0)


def test_client_that_leaves_pays_for_the_tokens_it_was_sent() -> None:
    gone: dict[str, Any] = {"outcome": Outcome.ABANDONED, "why": Reason.CLIENT_GONE, "good": False, "output_tokens": 12}
    sums = metered(attempt(1), tokens_exact=False, **gone)
    assert tokens(sums) == (100, 12)
    assert (sums.abandoned, sums.estimated_tokens, sums.good_tokens) == (1, 12, 0)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome.REFUSED, Reason.PREDICTED),
        (Outcome.QUOTA, Reason.LIMIT_TOKENS),
        (Outcome.TIMEOUT, Reason.TTFT_TIMEOUT),
        (Outcome.ERROR, Reason.UPSTREAM_ERROR),
        (Outcome.ABANDONED, Reason.CLIENT_GONE),
    ],
)
def test_request_that_ends_before_its_first_token_costs_nothing(outcome: Outcome, why: Reason) -> None:
    tried = [] if outcome in (Outcome.REFUSED, Outcome.QUOTA) else [attempt(1)]
    sums = metered(*tried, answered_by=0, outcome=outcome, why=why, good=False)
    assert tokens(sums) == (0, 0)
    assert sums.requests == 1
    assert sums.slot_s == 2.0 * len(tried)


def test_rejection_by_the_engine_costs_nothing() -> None:
    sums = metered(attempt(1), outcome=Outcome.INVALID, why=Reason.UPSTREAM_REJECTED, good=False)
    assert tokens(sums) == (0, 0)


def test_answer_that_broke_off_costs_the_tokens_that_were_sent() -> None:
    broken: dict[str, Any] = {"outcome": Outcome.ERROR, "why": Reason.UPSTREAM_TRUNCATED, "good": False}
    assert tokens(metered(attempt(1), output_tokens=5, tokens_exact=False, **broken)) == (100, 5)


def test_hedge_costs_slot_seconds_and_no_tokens() -> None:
    sums = metered(attempt(1, held_s=1.0), attempt(2, cached=64, held_s=3.0), answered_by=2)
    assert tokens(sums) == (100, 57)
    assert (sums.cached_tokens, sums.slot_s) == (64, 4.0)


@pytest.mark.parametrize(("cached", "expected"), [(None, None), (0, 0), (64, 64)])
def test_zero_is_a_value_and_missing_is_missing(cached: int | None, expected: int | None) -> None:
    sums = metered(attempt(1, cached=cached, reasoning=cached))
    assert (sums.cached_tokens, sums.reasoning_tokens) == (expected, expected)


def test_missing_counts_add_nothing_to_those_that_are_known() -> None:
    sums = metered(attempt(1, cached=64))
    sums.add(metered(attempt(1)))
    assert (sums.requests, sums.cached_tokens, sums.reasoning_tokens) == (2, 64, None)


def test_counts_that_no_engine_made_are_summed_apart() -> None:
    uncounted = attempt(1)
    uncounted.prompt_tokens = None
    assert metered(uncounted, tokens_exact=False).estimated_tokens == 157
    assert metered(uncounted).estimated_tokens == 100


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_each_api_is_metered_by_the_counts_of_its_engine_streamed_or_whole(path: str, tmp_path: Path) -> None:
    db, policy = tmp_path / "usage.db", tmp_path / "policy.yaml"
    cap = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    async with Emulator(replicas=1) as emulator:
        await asyncio.to_thread(policy.write_text, rules(*emulator.urls))
        settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, usage=db)
        async with (
            Gateway(settings, load(policy), policy) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=20) as client,
        ):
            for stream in (False, True):
                answer = await client.post(path, json={**MINIMAL[path], cap: 5, "stream": stream})
                assert answer.status_code == 200, answer.text
            records = (await client.get(f"{gateway.admin_url}/admin/requests")).json()["requests"]
    counts = [(one["attempts"][0]["prompt_tokens"], one["attempts"][0]["output_tokens"]) for one in records]
    assert counts[0] == counts[1]
    assert counts[0][1] == 5
    total: Any = report([db], Question((), 0, 10_000_000), None)["total"]
    assert (total["prompt_tokens"], total["output_tokens"]) == (2 * counts[0][0], 10)
    assert total["estimated_tokens"] == 0
