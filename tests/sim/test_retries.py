"""Clients of a run that retry."""

from __future__ import annotations

import math
from random import Random

import pytest

from gateway.core.controller import Controller
from gateway.core.policy import Limits
from gateway.core.pool_spec import Timeouts
from gateway.core.request import Request
from gateway.core.results import Outcome, Reason, Record
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.run.options import Options
from gateway.sim.run.requests import asked
from gateway.sim.run.results import Result
from gateway.sim.run.retries import rests_s
from gateway.sim.run.run import simulate
from tests.sim.made import Spy, arrival, policy, tier


def ended(outcome: Outcome, why: Reason | None) -> Record:
    request: Request = asked(arrival(0.0), 1, policy(), True, 0.0)
    return Record(request, outcome, why, "p", None, 0.0, None, None, 0.0, 100, 0, False, False, 0)


class Half(Random):
    """A random source whose every draw is .5. So each pause is shortened by an eighth."""

    def random(self) -> float:
        return 0.5


@pytest.mark.parametrize(("tries", "pause_s"), [(1, 0.4375), (2, 0.875), (4, 3.5), (5, 7.0), (9, 7.0)])
def test_retry_pauses_double_up_to_eight_seconds(tries: int, pause_s: float) -> None:
    failed = ended(Outcome.ERROR, Reason.UPSTREAM_ERROR)
    assert rests_s(failed, None, tries, Half()) == pause_s


@pytest.mark.parametrize(
    ("outcome", "why", "retry_after_s", "rests"),
    [
        (Outcome.REFUSED, Reason.PREDICTED, 7.3, 7.3),
        (Outcome.REFUSED, Reason.QUEUE_FULL, None, 1.0),  # the Retry-After of a 429 is one second if nothing is known
        (Outcome.REFUSED, Reason.QUEUE_FULL, 120.0, 120.0),
        (Outcome.REFUSED, Reason.QUEUE_FULL, 120.5, None),
        (Outcome.TIMEOUT, Reason.QUEUE_TIMEOUT, 2.0, 2.0),
        (Outcome.TIMEOUT, Reason.TOTAL_TIMEOUT, 2.0, None),
        (Outcome.QUOTA, Reason.LIMIT_TOKENS, 3.0, 3.0),
        (Outcome.QUOTA, Reason.LIMIT_TOKENS, math.inf, None),
        (Outcome.INVALID, Reason.CONTEXT_LENGTH, None, None),
        (Outcome.ABANDONED, Reason.CLIENT_GONE, None, 0.4375),
        (Outcome.OK, None, None, None),
    ],
)
def test_client_retries_after_the_pause_that_the_answer_asks_for(
    outcome: Outcome, why: Reason | None, retry_after_s: float | None, rests: float | None
) -> None:
    assert rests_s(ended(outcome, why), retry_after_s, 1, Half()) == rests


def run(retries: int, *faults: Fault, patience_s: float = math.inf, **more: float) -> tuple[Spy, Result]:
    rules = policy(tier(timeouts=Timeouts(**{"total_s": 100.0, "idle_s": 100.0, "ttft_s": 100.0, **more})))
    spy = Spy(Controller(rules, Random(1)))
    options = Options(retries=retries, patience_s=patience_s)
    fleet = FleetSpec(faults=faults)
    return spy, simulate(rules, [arrival(1.0)], decider=spy, fleet=fleet, options=options)


REFUSES, WELL = Fault(0.0, "r1", Harm.BUSY), Fault(1.5, "r1", Harm.RECOVER)


def test_retried_request_is_served_and_counted_once() -> None:
    spy, found = run(3, REFUSES, WELL)
    assert [record.outcome for record in spy.records()] == [Outcome.ERROR, Outcome.OK]
    assert (found.arrived, found.offered, found.finished, found.tiers["default"].outcomes) == (1, 1, 1, {"ok": 1})


def test_latency_of_a_retried_request_starts_at_its_first_try() -> None:
    spy, found = run(3, REFUSES, WELL)
    last = spy.calls("arrive")[-1].at
    assert last == 2.0  # told to wait one second, since nothing is known
    ttft_s, e2e_s = found.tiers["default"].ttft.p50, found.tiers["default"].e2e.p50
    assert ttft_s is not None
    assert e2e_s is not None
    assert 1.0 < ttft_s < e2e_s < 1.5
    assert found.good == 0, "the objective is a second"
    assert found.timeline.offered == (0, 1)
    assert found.little * found.seconds == pytest.approx(e2e_s)


def test_client_gives_up_after_its_last_retry() -> None:
    spy, found = run(2, REFUSES)
    assert len(spy.records()) == 3
    assert (found.offered, found.finished) == (1, 0)
    default = found.tiers["default"]
    assert (default.newcomers.tries, default.comebacks.tries) == (1, 2)


def test_each_try_of_a_client_has_the_full_patience() -> None:
    spy, found = run(1, Fault(0.0, "r1", Harm.HUNG), Fault(3.0, "r1", Harm.RECOVER), patience_s=2.0)
    first, second = (heard.at for heard in spy.calls("arrive"))
    assert 3.0 + 0.375 <= second <= 3.0 + 0.5
    assert first == 1.0
    assert found.finished == 1


def test_broken_stream_is_not_retried_by_the_client() -> None:
    spy, found = run(3, Fault(1.1, "r1", Harm.DEAD), Fault(1.2, "r1", Harm.RECOVER))
    assert [record.why for record in spy.records()] == [Reason.UPSTREAM_TRUNCATED]
    assert found.finished == 0


def test_client_waits_for_a_used_up_rate_limit() -> None:
    rules = policy(tier(limits=Limits(requests_per_min=60.0)))
    crowd = [arrival(0.0, 10, 5) for _ in range(70)]
    plain = simulate(rules, crowd)
    patient = simulate(rules, crowd, options=Options(retries=3))
    assert plain.tiers["default"].outcomes["quota"] > 5
    assert patient.finished > plain.finished
