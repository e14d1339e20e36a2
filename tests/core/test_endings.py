"""Ends of requests (answered, failed, left, shut down) and their records."""

import pytest

from gateway.core.policy import AdmissionMode, AdmissionSpec
from gateway.core.request import GENERATING, Endpoint
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.slo import Objective, Slo

from .made import policy, pool, tier
from .playbook import Story, cancel, commit, dispatch, ended, play, refuse

RULES = policy(pool("p", "r1"))


def one() -> Story:
    return play(RULES).arrives("a").whatever()


# ---- answered


def test_a_stream_is_committed_at_its_first_token_and_over_at_its_end() -> None:
    story = play(RULES).arrives("a").expect(dispatch("r1"))
    story.sent("a").expect()
    story.first_token("a").expect(commit())
    story.progress("a", 10).expect()
    story.finishes("a").expect(ended(Outcome.OK, why=None, pool="p", replica="r1", attempts=1))


def test_first_token_is_reported_once() -> None:
    one().sent("a").first_token("a").whatever().first_token("a").expect()


def test_unstreamed_answer_is_committed_at_its_end() -> None:
    story = play(RULES).arrives("a", stream=False).sent("a").whatever()
    story.finishes("a").expect(commit(), ended(Outcome.OK, ttft_s=None, tpot_s=None))


def test_long_unstreamed_answer_can_be_committed_early() -> None:
    story = play(RULES).arrives("a", stream=False).sent("a").whatever()
    story.first_token("a").expect(commit())
    story.finishes("a").expect(ended(Outcome.OK, ttft_s=None))


def test_a_stream_without_content_is_committed_at_its_end() -> None:
    one().sent("a").finishes("a", output_tokens=0).expect(commit(), ended(Outcome.OK, ttft_s=None, output_tokens=0))


def test_refusal_by_the_engine_is_passed_on_and_counts_as_invalid() -> None:
    story = one().sent("a").finishes("a", AttemptOutcome.REJECTED, status=400)
    story.expect(commit(), ended(Outcome.INVALID, why=Reason.UPSTREAM_REJECTED, good=False))


# ---- failed


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (AttemptOutcome.BUSY, Reason.UPSTREAM_BUSY),
        (AttemptOutcome.FAILED, Reason.UPSTREAM_ERROR),
        (AttemptOutcome.UNREACHABLE, Reason.UPSTREAM_UNREACHABLE),
        (AttemptOutcome.CONNECT_TIMEOUT, Reason.CONNECT_TIMEOUT),
        (AttemptOutcome.RESET, Reason.UPSTREAM_ERROR),
        (AttemptOutcome.TRUNCATED, Reason.UPSTREAM_TRUNCATED),
    ],
)
def test_failed_attempt_without_a_retry_ends_the_request_in_error(end: AttemptOutcome, why: Reason) -> None:
    one().finishes("a", end).expect(refuse(why), ended(Outcome.ERROR, why=why, good=False))


def test_an_engines_own_retry_after_is_passed_on() -> None:
    one().sent("a").finishes("a", AttemptOutcome.BUSY, retry_after_s=7.0).expect(
        refuse(Reason.UPSTREAM_BUSY, retry_after_s=7.0), ended(Outcome.ERROR)
    )


@pytest.mark.parametrize(
    ("end", "why"),
    [(AttemptOutcome.TRUNCATED, Reason.UPSTREAM_TRUNCATED), (AttemptOutcome.FAILED, Reason.UPSTREAM_ERROR)],
)
def test_failure_after_commit_is_an_error_inside_the_answer(end: AttemptOutcome, why: Reason) -> None:
    story = one().sent("a").first_token("a").expect(commit())
    story.finishes("a", end).expect(refuse(why), ended(Outcome.ERROR))


def test_broken_stream_is_recorded_with_the_tokens_so_far() -> None:
    story = one().sent("a").at(1.0).first_token("a").at(3.0).progress("a", 21).whatever()
    story.finishes("a", AttemptOutcome.TRUNCATED, tokens_seen=25).expect(
        refuse(Reason.UPSTREAM_TRUNCATED),
        ended(Outcome.ERROR, output_tokens=25, tokens_exact=False, ttft_s=1.0, tpot_s=2.0 / 24),
    )


def test_a_failed_answer_is_recorded_with_the_engines_counts_if_it_gave_them() -> None:
    story = one().sent("a").first_token("a").whatever()
    story.finishes("a", AttemptOutcome.FAILED, prompt_tokens=90, output_tokens=12).expect(
        refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR, prompt_tokens=90, output_tokens=12, tokens_exact=True)
    )


# ---- left


def test_client_that_leaves_the_queue_ends_its_request_at_once() -> None:
    story = one().arrives("b").whatever()
    story.at(2.0).leaves("b").expect(
        ended(Outcome.ABANDONED, why=Reason.CLIENT_GONE, queue_s=2.0, e2e_s=2.0, replica=None, attempts=0)
    )
    assert story.pool("p").queued == 0
    story.finishes("a").expect(commit(), ended(Outcome.OK))


@pytest.mark.parametrize("phase", ["connecting", "sent", "streaming"])
def test_request_whose_client_left_ends_after_its_attempt_is_closed(phase: str) -> None:
    story = one()
    if phase != "connecting":
        story.sent("a")
    if phase == "streaming":
        story.first_token("a").progress("a", 7)
    story.whatever().leaves("a").expect(cancel())
    assert story.pool("p").in_flight == 1
    tokens = 7 if phase == "streaming" else 0
    story.cancelled("a").expect(ended(Outcome.ABANDONED, why=Reason.CLIENT_GONE, output_tokens=tokens))
    assert story.pool("p").in_flight == 0
    assert story.replica("r1").unprefilled_tokens == 0


def test_request_of_a_stalled_client_ends_with_reason_client_stalled() -> None:
    story = one().sent("a").first_token("a").whatever()
    story.leaves("a", Reason.CLIENT_STALLED).expect(cancel())
    story.cancelled("a").expect(ended(Outcome.ABANDONED, why=Reason.CLIENT_STALLED))


def test_leave_call_has_no_effect_twice_or_after_the_end() -> None:
    story = one().sent("a").leaves("a").whatever()
    story.leaves("a").expect()
    story.cancelled("a").whatever()
    story.leaves("a").expect()


def test_leave_call_has_no_effect_while_a_refused_attempt_is_closing() -> None:
    story = one().sent("a").shuts().expect(refuse(Reason.SHUTTING_DOWN), cancel())
    story.leaves("a").expect()
    story.cancelled("a").expect(ended(Outcome.REFUSED, why=Reason.SHUTTING_DOWN))


def test_late_reports_of_a_cancelled_attempt_give_no_commands() -> None:
    story = one().leaves("a").whatever()
    story.sent("a").first_token("a").progress("a", 3).expect()
    assert story.replica("r1").unprefilled_tokens == 0
    story.finishes("a", output_tokens=3).expect(ended(Outcome.ABANDONED, output_tokens=3, ttft_s=None))


# ---- shut


def test_shutdown_ends_all_requests() -> None:
    story = play(policy(pool("p", "r1", "r2"))).arrives("a").arrives("b").arrives("c")
    story.sent("a").first_token("a").whatever()
    story.shuts().expect(
        refuse(Reason.SHUTTING_DOWN, of="a"),
        cancel(of="a"),
        refuse(Reason.SHUTTING_DOWN, of="b"),
        cancel(of="b"),
        refuse(Reason.SHUTTING_DOWN, of="c"),
        ended(Outcome.REFUSED, of="c"),
    )
    story.shuts().expect()
    story.cancelled("a").expect(ended(Outcome.REFUSED, why=Reason.SHUTTING_DOWN))
    story.cancelled("b").expect(ended(Outcome.REFUSED, why=Reason.SHUTTING_DOWN))


# ---- the record

SLO = Slo(
    ttft=(Objective(0.5, 0.1), Objective(0.99, 1.0)),
    tpot=(Objective(0.99, 0.1),),
    e2e=(Objective(0.99, 10.0),),
    e2e_up_to_tokens=100,
)
MEASURED = policy(pool("p", "r1"), tier("std", slo=SLO, admission=AdmissionSpec(AdmissionMode.OFF)))


def stream(*, body_at: float = 0.0, first_at: float, end_at: float, tokens: int) -> Story:
    story = play(MEASURED).arrives("a", head_at=0.0, body_at=body_at).sent("a").at(first_at).first_token("a")
    return story.at(end_at).finishes("a", output_tokens=tokens, prompt_tokens=77).whatever()


def test_every_latency_counts_from_its_own_anchor() -> None:
    story = play(MEASURED).arrives("running").at(2.0).arrives("a", head_at=0.5, body_at=1.5)
    story.at(3.0).finishes("running").at(3.5).sent("a").at(4.0).first_token("a").at(6.0)
    story.finishes("a", output_tokens=41, prompt_tokens=99)
    record = story.records["a"]
    assert record.queue_s == pytest.approx(1.5)
    assert record.ttft_s == pytest.approx(2.5)
    assert record.tpot_s == pytest.approx(2.0 / 40)
    assert record.e2e_s == pytest.approx(4.5)
    assert (record.prompt_tokens, record.output_tokens, record.tokens_exact) == (99, 41, True)


def test_answer_of_one_token_has_no_tpot() -> None:
    story = stream(first_at=0.5, end_at=0.6, tokens=1)
    assert (story.records["a"].tpot_s, story.records["a"].good) == (None, True)


@pytest.mark.parametrize(
    ("first_at", "end_at", "tokens", "good"),
    [
        (1.0, 5.0, 41, True),
        (1.001, 5.0, 41, False),
        (1.0, 5.1, 41, False),
        (0.5, 10.0, 100, True),
        (0.5, 10.001, 100, False),
        (0.5, 10.4, 101, True),
    ],
    ids=["at the bounds", "late first token", "slow tokens", "long", "too long", "longer than e2e is for"],
)
def test_a_request_is_good_within_every_bound_of_its_tier(
    first_at: float, end_at: float, tokens: int, good: bool
) -> None:
    assert stream(first_at=first_at, end_at=end_at, tokens=tokens).records["a"].good is good


def test_unstreamed_answer_is_judged_by_e2e_alone() -> None:
    story = play(MEASURED).arrives("a", stream=False).sent("a").at(9.9).finishes("a", output_tokens=2)
    assert story.records["a"].good
    story.arrives("b", stream=False).sent("b").after(10.1).finishes("b", output_tokens=2)
    assert not story.records["b"].good


def test_record_without_usage_has_the_tokens_that_were_seen() -> None:
    story = one().sent("a").first_token("a").progress("a", 10).finishes("a", tokens_seen=12)
    record = story.records["a"]
    assert (record.prompt_tokens, record.output_tokens, record.tokens_exact) == (100, 12, False)


def test_queue_time_of_an_undispatched_request_lasts_until_its_end() -> None:
    story = one().arrives("b").at(4.0).leaves("b")
    assert story.records["b"].queue_s == pytest.approx(4.0)


@pytest.mark.parametrize("endpoint", sorted(set(Endpoint) - GENERATING))
def test_embedding_record_has_no_output_tokens(endpoint: Endpoint) -> None:
    story = play(RULES).arrives("a", endpoint=endpoint, stream=False).sent("a")
    story.finishes("a", prompt_tokens=9).whatever()
    assert (story.records["a"].output_tokens, story.records["a"].outcome) == (0, Outcome.OK)
