"""Limits of tenants: taken on arrival, returned, and settled at the end."""

import math
from typing import Any

from gateway.core.policy import LimitKind, Limits, Policy, Quota
from gateway.core.queueing.limits import MAX_TURN_S
from gateway.core.request import Endpoint
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import LimitLease
from gateway.core.snapshot import QuotaView

from .made import policy, pool, tier
from .playbook import commit, dispatch, ended, play, refuse


def limited(*, slots: int | None = None, **limits: Any) -> Policy:
    return policy(pool("p", "r1", slots=slots), tier("std", limits=Limits(**limits)))


# ---- requests a minute


def test_request_limit_admits_a_minutes_requests_at_once_and_then_one_by_one() -> None:
    story = play(limited(requests_per_min=3))
    for name in ("a", "b", "c"):
        story.arrives(name).expect(dispatch("r1"))
    story.arrives("d").expect(
        refuse(Reason.LIMIT_REQUESTS, retry_after_s=20.0), ended(Outcome.QUOTA, why=Reason.LIMIT_REQUESTS)
    )
    story.at(19.99).arrives("e").expect(refuse(Reason.LIMIT_REQUESTS), ended(Outcome.QUOTA))
    story.at(20.0).arrives("f").expect(dispatch("r1"))
    story.arrives("g").expect(refuse(Reason.LIMIT_REQUESTS, retry_after_s=40.0), ended(Outcome.QUOTA))


def test_request_limit_below_one_a_minute_admits_one_request() -> None:
    story = play(limited(requests_per_min=0.5)).arrives("a").expect(dispatch("r1"))
    story.arrives("b").expect(refuse(Reason.LIMIT_REQUESTS, retry_after_s=120.0, detail=""), ended(Outcome.QUOTA))
    assert story.limits().requests_limit == 1
    story.at(120.0).arrives("c").expect(dispatch("r1"))


# ---- tokens a minute


def test_token_limit_reserves_prompt_and_output_on_arrival_and_settles_by_usage() -> None:
    story = play(limited(tokens_per_min=6000)).arrives("a", prompt=1000, max_tokens=500, choices=2)
    assert story.limits().tokens_left == 4000
    story.sent("a").first_token("a").finishes("a", prompt_tokens=1000, output_tokens=300)
    assert story.limits().tokens_left == 4700


def test_refusal_by_the_token_limit_says_when_it_will_fit() -> None:
    story = play(limited(tokens_per_min=6000)).arrives("a", prompt=5000, max_tokens=500).whatever()
    story.arrives("b", prompt=900, max_tokens=100).expect(
        refuse(Reason.LIMIT_TOKENS, retry_after_s=5.0), ended(Outcome.QUOTA, why=Reason.LIMIT_TOKENS)
    )
    story.at(5.0).arrives("c", prompt=900, max_tokens=100).expect(dispatch("r1"))


def test_request_above_a_whole_minutes_tokens_is_refused_permanently() -> None:
    detail = "this request reserves 6001 tokens, more than the limit of a whole minute"
    story = play(limited(tokens_per_min=6000)).arrives("a", prompt=5901, max_tokens=100)
    story.expect(refuse(Reason.LIMIT_TOKENS, retry_after_s=math.inf, detail=detail), ended(Outcome.QUOTA))
    story.arrives("b", prompt=5900, max_tokens=100).expect(dispatch("r1"))


def test_output_above_the_reservation_is_charged_to_the_token_limit() -> None:
    story = play(limited(tokens_per_min=6000)).arrives("a", prompt=5000, max_tokens=1000).sent("a").whatever()
    story.finishes("a", prompt_tokens=6500, output_tokens=500).whatever()
    assert story.limits().tokens_left == 0
    story.arrives("b", prompt=50, max_tokens=50).expect(
        refuse(Reason.LIMIT_TOKENS, retry_after_s=11.0), ended(Outcome.QUOTA)
    )


def test_embedding_reserves_only_its_prompt_tokens() -> None:
    story = play(limited(tokens_per_min=6000))
    story.arrives("a", endpoint=Endpoint.EMBEDDINGS, stream=False, prompt=2000, choices=256, max_tokens=None)
    story.expect(dispatch("r1", max_tokens=0))
    assert story.limits().tokens_left == 4000


# ---- given back


def test_refused_request_is_not_charged_to_the_limits() -> None:
    rules = policy(pool("p", "r1", queue_limit=0), tier("std", limits=Limits(10, 6000, concurrency=5)), tier("other"))
    story = play(rules).arrives("running", tier="other").whatever()
    story.arrives("a").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))
    view = story.limits()
    assert (view.requests_left, view.tokens_left, view.in_flight) == (10, 6000, 0)


def test_request_that_reached_no_engine_is_not_charged_to_the_limits() -> None:
    story = play(limited(requests_per_min=10, tokens_per_min=6000)).arrives("a")
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(
        dispatch("r1"), refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR)
    )
    view = story.limits()
    assert (view.requests_left, view.tokens_left) == (10, 6000)


def test_request_rejected_by_the_engine_is_charged_without_tokens() -> None:
    story = play(limited(requests_per_min=10, tokens_per_min=6000)).arrives("a").sent("a")
    story.finishes("a", AttemptOutcome.REJECTED).expect(dispatch("r1"), commit(), ended(Outcome.INVALID))
    view = story.limits()
    assert (view.requests_left, view.tokens_left) == (9, 6000)


def test_client_that_left_is_charged_for_the_tokens_so_far() -> None:
    story = play(limited(requests_per_min=10, tokens_per_min=6000)).arrives("a", prompt=1000, max_tokens=1000)
    story.sent("a").first_token("a").progress("a", 40).leaves("a").cancelled("a")
    view = story.limits()
    assert (view.requests_left, view.tokens_left) == (9, 6000 - 1040)


def test_refusal_by_one_limit_takes_nothing_from_the_others() -> None:
    story = play(limited(requests_per_min=10, tokens_per_min=500)).arrives("a", prompt=400, max_tokens=200).whatever()
    view = story.limits()
    assert (view.requests_left, view.tokens_left, view.in_flight) == (10, 500, 0)


# ---- at a time


def test_concurrency_is_a_lease_held_to_the_end_of_the_last_attempt() -> None:
    story = play(limited(concurrency=2)).arrives("a").arrives("b").whatever()
    story.arrives("c").expect(refuse(Reason.LIMIT_CONCURRENCY, retry_after_s=1.0), ended(Outcome.QUOTA))
    story.leaves("a").whatever()
    story.arrives("d").expect(refuse(Reason.LIMIT_CONCURRENCY), ended(Outcome.QUOTA))
    story.cancelled("a").whatever()
    story.arrives("e").expect(dispatch("r1"))


def test_queued_requests_hold_concurrency_leases() -> None:
    story = play(limited(slots=1, concurrency=2)).arrives("a").arrives("b").expect(dispatch("r1", of="a"))
    story.arrives("c").expect(refuse(Reason.LIMIT_CONCURRENCY), ended(Outcome.QUOTA))
    story.leaves("b").expect(ended(Outcome.ABANDONED))
    story.arrives("d").expect()


# ---- apart


def test_tenants_do_not_share_their_limits() -> None:
    story = play(limited(requests_per_min=1)).arrives("a", tenant="acme").expect(dispatch("r1"))
    story.arrives("b", tenant="globex").expect(dispatch("r1"))
    story.arrives("c", tenant="acme").expect(refuse(Reason.LIMIT_REQUESTS), ended(Outcome.QUOTA))


def test_limits_of_one_tenant_are_counted_by_tier() -> None:
    rules = policy(pool("p", "r1", slots=None), tier("x", limits=Limits(1)), tier("y", limits=Limits(1)))
    story = play(rules).arrives("a", tier="x").arrives("b", tier="y")
    story.expect(dispatch("r1", of="a"), dispatch("r1", of="b"))


# ---- seen


def test_snapshot_shows_what_is_left_of_the_limits() -> None:
    story = play(limited(requests_per_min=60, tokens_per_min=6000, concurrency=5))
    assert story.controller.left("acme", "std", 0.0) == (None, None)
    story.arrives("a", prompt=100, max_tokens=200).after(0.5)
    view = story.limits()
    assert story.controller.left("acme", "std", 0.5) == ((60, 59.5, 0.5), (6000, 5750, 2.5))
    assert (view.requests_left, view.requests_reset_s) == (59.5, 0.5)
    assert (view.tokens_left, view.tokens_reset_s) == (5750, 2.5)
    assert (view.concurrency_limit, view.in_flight) == (5, 1)


def test_limits_left_are_none_without_limits() -> None:
    view = play(limited()).arrives("a").limits()
    assert (view.requests_left, view.tokens_left, view.concurrency_limit, view.in_flight) == (None, None, None, 1)


# ---- a reload


def test_reload_keeps_the_used_part_of_limits() -> None:
    story = play(limited(requests_per_min=10, tokens_per_min=6000)).arrives("a", prompt=900, max_tokens=100)
    story.configured(limited(requests_per_min=20, tokens_per_min=2000)).whatever()
    view = story.limits()
    assert (view.requests_left, view.tokens_left) == (19, 1000)


def test_reload_to_a_limit_below_the_used_part_leaves_nothing() -> None:
    story = play(limited(requests_per_min=10))
    for number in range(8):
        story.arrives(f"a{number}")
    story.configured(limited(requests_per_min=5)).whatever()
    assert story.limits().requests_left == 0
    story.arrives("b").expect(refuse(Reason.LIMIT_REQUESTS, retry_after_s=48.0), ended(Outcome.QUOTA))


def test_concurrency_limit_added_by_a_reload_counts_earlier_requests() -> None:
    story = play(limited()).arrives("a").configured(limited(concurrency=1)).whatever()
    story.arrives("b").expect(refuse(Reason.LIMIT_CONCURRENCY), ended(Outcome.QUOTA))


def test_each_request_that_the_request_limit_refuses_hears_a_place_of_its_own() -> None:
    story = play(policy(pool("p", "r1", slots=100), tier("std", limits=Limits(requests_per_min=6.0))))
    for number in range(6):
        story.arrives(f"served {number}").whatever()
    for number in range(34):
        story.arrives(f"{number}").expect(
            refuse(Reason.LIMIT_REQUESTS, retry_after_s=10.0 * (number + 1)), ended(Outcome.QUOTA)
        )
    # Turns that nobody took are not waited for: a later request hears what is left.
    story.at(1000.0).arrives("later").expect(dispatch("r1"))


def test_turns_among_the_refused_are_bounded() -> None:
    story = play(policy(pool("p", "r1", slots=100), tier("std", limits=Limits(requests_per_min=1.0)))).arrives("a")
    for number in range(50):
        story.arrives(f"{number}").whatever()
    story.arrives("b").expect(refuse(Reason.LIMIT_REQUESTS, retry_after_s=MAX_TURN_S), ended(Outcome.QUOTA))


# ---- quotas


def test_quota_is_used_up_until_the_next_day() -> None:
    quota = Quota(LimitKind.REQUESTS_DAY, "day", 2.0)
    story = play(limited(quotas=(quota,))).opens("2026-11-29", 500.0)
    story.arrives("a").expect(dispatch("r1")).arrives("b").expect(dispatch("r1"))
    story.at(100.0).arrives("c").expect(
        refuse(Reason.LIMIT_QUOTA, retry_after_s=400.0), ended(Outcome.QUOTA, why=Reason.LIMIT_QUOTA)
    )
    story.at(500.0).opens("2026-11-30", 1000.0).arrives("d").expect(dispatch("r1"))
    assert story.limits().quotas == (QuotaView(LimitKind.REQUESTS_DAY, 2.0, 1.0),)


def test_token_quota_is_settled_by_usage_and_survives_a_restart_on_the_same_day() -> None:
    limits = limited(quotas=(Quota(LimitKind.TOKENS_DAY, "day", 1000.0),))
    story = play(limits).opens("2026-11-29", 500.0).arrives("a", prompt=100, max_tokens=500).sent("a").first_token("a")
    story.whatever().finishes("a", prompt_tokens=100, output_tokens=300).whatever()
    memory = story.controller.memory(story.now)
    for day, left in (("2026-11-29", 600.0), ("2026-11-30", 1000.0)):
        later = play(limits).opens(day, 500.0)
        later.controller.recall(memory, 3.0, 0.0)
        later.arrives("b", prompt=900, max_tokens=101).whatever()
        later.arrives("c", prompt=int(left) - 50, max_tokens=50).expect(dispatch("r1"))
    again = later.controller.memory(later.now)["quotas"]
    assert again == [["acme", "std", "tokens-day", "2026-11-30", 1000.0]]


def test_request_above_a_whole_quota_is_refused_permanently() -> None:
    story = play(limited(quotas=(Quota(LimitKind.TOKENS_MONTH, "month", 100.0),))).arrives("a", prompt=99, max_tokens=2)
    detail = "this request reserves 101 tokens, more than the quota"
    story.expect(refuse(Reason.LIMIT_QUOTA, retry_after_s=math.inf, detail=detail), ended(Outcome.QUOTA))


# ---- limits that gateways share


def test_gateways_have_equal_shares_of_a_limit_without_leases() -> None:
    story = play(limited(requests_per_min=4, concurrency=6)).shares(2)
    story.arrives("a").expect(dispatch("r1")).arrives("b").expect(dispatch("r1"))
    story.arrives("c").expect(refuse(Reason.LIMIT_REQUESTS, retry_after_s=30.0), ended(Outcome.QUOTA))
    assert story.limits().requests_limit == 4


def test_a_lease_replaces_the_equal_share_until_it_lapses() -> None:
    story = play(limited(requests_per_min=6)).shares(
        2, LimitLease("acme", "std", LimitKind.REQUESTS, 1.0, 3.0, 0.5, 3.0)
    )
    story.arrives("a").expect(dispatch("r1"))
    assert story.limits().requests_left == 3.0, "those elsewhere"
    story.at(2.9).arrives("b").expect(refuse(Reason.LIMIT_REQUESTS, retry_after_s=20.0), ended(Outcome.QUOTA))
    story.at(23.0).arrives("c").expect(dispatch("r1"))


def test_a_lease_of_a_tier_that_is_gone_is_ignored() -> None:
    story = play(limited(concurrency=1)).shares(2, LimitLease("acme", "old", LimitKind.TOKENS, 1.0, 0.0, 0.5, 3.0))
    story.arrives("a").expect(dispatch("r1"))
