"""Duplicates of requests whose first token is late."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.policy import Hedge, Policy, Retry
from gateway.core.pool_spec import Timeouts
from gateway.core.redundancy.hedging import BURST, LAST_HEDGES, SUSPENSION_S, HedgeDenied
from gateway.core.redundancy.ttft_quantiles import MIN_SAMPLES, TtftQuantiles
from gateway.core.request import Prefix
from gateway.core.results import AttemptOutcome, HedgeResult, Outcome, Reason
from gateway.core.sample import Sample

from .made import NEVER_TOO_LATE, policy, pool, tier
from .playbook import Story, cancel, commit, dispatch, ended, play, refuse

ALWAYS = Hedge(holdout=0.0, budget=1.0)


def rules(hedge: Hedge | None = ALWAYS, *replicas: str, slots: int = 10, **more: Any) -> Policy:
    return policy(pool("p", *(replicas or ("r1", "r2")), slots=slots), tier("std", hedge=hedge, **more))


def warmed(story: Story, ttft_s: float = 1.0, n: int = MIN_SAMPLES, **how: Any) -> Story:
    """Serve `n` requests: one in five has its first token after `ttft_s`, the others after a tenth of that.

    None is hedged: all are in the holdout.
    """
    was = story.controller.policy
    std = was.tiers["std"]
    if std.hedge is not None:
        story.configured(replace(was, tiers={"std": replace(std, hedge=replace(std.hedge, holdout=1.0))}))
    for index in range(n):
        name = f"warm {len(story.records)}"
        took_s = ttft_s if index % 5 == 0 else ttft_s / 10
        story.arrives(name, **how).sent(name).after(took_s).first_token(name).finishes(name, output_tokens=2).whatever()
    return story.configured(was).after(5.0).whatever()  # quantiles are read only every few seconds


def late(story: Story, name: str = "a", at: str = "r1", **how: Any) -> Story:
    """A request without an answer until the hedging threshold of warm requests has passed."""
    story.arrives(name, **how).sent(name).expect(dispatch(at))
    rings_at = story.controller.state.hedges.timers.next_at()
    return story if rings_at == math.inf else story.at(rings_at)


def expected(story: Story, ttft_s: float) -> Story:
    """Set the TTFT of the last attempt that is expected at a typical replica to `ttft_s`."""
    facts = story.controller.state.attempts[max(story.controller.state.attempts)].prediction
    assert facts is not None
    facts.expected_s = ttft_s
    return story


def denied(story: Story) -> dict[str, int]:
    (of,) = story.controller.snapshot(story.now).hedged_tiers
    return {why: n for why, n in of.denied if n}


class TestLateFirstToken:
    def test_request_is_duplicated_once_its_ttft_quantile_has_passed(self) -> None:
        story = warmed(play(rules())).arrives("a").sent("a").expect(dispatch("r1"))
        story.after(0.97).expect()
        story.after(0.05).expect(dispatch("r2"))

    def test_hedge_clock_starts_when_the_request_is_sent(self) -> None:
        story = warmed(play(rules())).arrives("a").after(30.0).expect(dispatch("r1"))
        story.sent("a").after(0.97).expect()
        story.after(0.05).expect(dispatch("r2"))

    def test_request_sent_again_on_another_connection_is_drawn_for_the_holdout_once(self) -> None:
        """The replica closes an idle connection while the request is being sent on it."""
        story = warmed(play(rules(Hedge(holdout=0.5, budget=1.0)), 0.0)).arrives("held")
        for _ in range(2):
            story.sent("held")
        (of,) = story.controller.snapshot(story.now).hedged_tiers
        assert of.held == MIN_SAMPLES + 1

    def test_reading_ttft_quantiles_does_not_change_them(self) -> None:
        """Journals do not contain reads, so a replay would differ otherwise."""
        found = []
        for looks in (False, True):
            first_tokens = TtftQuantiles()
            for number in range(2 * MIN_SAMPLES):
                if looks and number == MIN_SAMPLES:
                    assert first_tokens.views((0.95,))
                first_tokens.add(7, 0.1 + 0.1 * number, False, 10.0 + 0.01 * number)
            found.append(first_tokens.quantile(7, 0.95, 11.0))
        assert found[0] == found[1] == pytest.approx(9.6, rel=0.02)

    def test_first_token_stops_the_hedge_clock(self) -> None:
        story = warmed(play(rules())).arrives("a").sent("a").after(0.5).first_token("a").whatever()
        story.after(60.0).expect()

    def test_request_is_not_hedged_before_there_are_enough_samples(self) -> None:
        late(warmed(play(rules()), n=MIN_SAMPLES - 1)).after(60.0).expect()

    def test_request_is_hedged_only_once(self) -> None:
        late(warmed(play(rules(ALWAYS, "r1", "r2", "r3")))).expect(dispatch("r2")).sent("a").after(60.0).expect()

    def test_request_of_a_tier_without_hedging_is_not_hedged(self) -> None:
        late(warmed(play(rules(None)))).after(60.0).expect()

    def test_hedge_quantile_is_that_of_the_tier(self) -> None:
        story = play(rules(Hedge(quantile=0.75, holdout=0.0, budget=1.0)))
        warmed(warmed(story, 1.0, n=10), 0.6)  # 12 of 60 took long, and .8 is between the two
        story.arrives("a").sent("a").expect(dispatch("r1")).after(0.5).expect(dispatch("r2"))

    def test_long_prompt_is_hedged_later_than_a_short_one(self) -> None:
        story = warmed(warmed(play(rules()), 0.1, prompt=100), 3.0, prompt=10_000)
        story.arrives("long", prompt=9000).sent("long").expect(dispatch("r1"))
        story.after(2.9).expect()
        story.after(0.2).expect(dispatch("r2"))

    def test_prompt_length_with_few_samples_uses_those_of_other_lengths(self) -> None:
        story = warmed(warmed(play(rules()), 0.5, n=100), 4.0, n=10, prompt=10_000)
        expected(story.arrives("long", prompt=9000).expect(dispatch("r1")), 0.1).sent("long")
        # 10 samples, where 50 would count alone; the p95 of all 110 is .5 s: exp(.2 ln 4 + .8 ln .5) = .76.
        story.after(0.74).expect()
        story.after(0.04).expect(dispatch("r2"))

    def test_request_is_not_hedged_before_its_expected_ttft(self) -> None:
        story = expected(warmed(play(rules())).arrives("a").expect(dispatch("r1")), 4.0)
        story.sent("a").after(5.9).expect()
        story.after(0.2).expect(dispatch("r2"))

    def test_learned_speed_of_a_slow_replica_does_not_put_off_the_duplicate(self) -> None:
        """Otherwise the requests of a replica that is eight times as slow would be sent again only when they are nearly
        answered.
        """
        story = expected(warmed(play(rules())).arrives("a").expect(dispatch("r1")), 0.5)
        facts = story.controller.state.attempts[max(story.controller.state.attempts)].prediction
        assert facts is not None
        facts.ttft_s = 8.0 * facts.expected_s
        story.sent("a").after(0.97).expect()
        story.after(0.05).expect(dispatch("r2"))

    def test_abandoned_attempt_does_not_lower_the_ttft_quantile(self) -> None:
        """A client that leaves after .1 s shows that the first token takes longer than .1 s."""
        story = play(rules())
        for n in range(100):
            name = f"left {n}"
            story.arrives(name).sent(name).after(0.1).leaves(name).cancelled(name).whatever()
        warmed(story, 1.0, n=60)
        late(story).expect(dispatch("r2"))

    @pytest.mark.parametrize("ends", [Story.first_token, Story.leaves])
    def test_ttft_during_which_the_gateway_stood_still_is_not_learned(
        self, ends: Callable[[Story, str], Story]
    ) -> None:
        story = play(rules())
        for n in range(10):
            story.arrives(f"held {n}").sent(f"held {n}")
        story.now += 9.0
        story.controller.lagged(8.9, story.now)
        for n in range(10):
            ends(story.whatever(), f"held {n}").cancelled(f"held {n}")
        (of,) = story.controller.snapshot(story.now).hedged_pools
        assert sum(threshold.samples for threshold in of.thresholds) == 0


class TestNoHedge:
    @pytest.mark.parametrize("how", [{"stream": False}, {"choices": 2}])
    def test_answers_that_cannot_be_hedged_are_sent_once(self, how: dict[str, Any]) -> None:
        late(warmed(play(rules())), **how).after(60.0).expect()

    def test_request_in_the_holdout_is_not_hedged_but_counted(self) -> None:
        story = warmed(play(rules(Hedge(holdout=1.0, budget=1.0))))
        late(story).after(60.0).expect()
        (of,) = story.controller.snapshot(story.now).hedged_tiers
        assert of.held == MIN_SAMPLES + 1

    def test_retried_request_is_not_hedged(self) -> None:
        story = warmed(play(rules())).arrives("a").sent("a").expect(dispatch("r1"))
        story.finishes("a", AttemptOutcome.BUSY).expect(dispatch("r2")).sent("a").after(60.0).expect()

    def test_request_refused_at_its_ttft_timeout_cancels_both_attempts(self) -> None:
        timeouts = Timeouts(NEVER_TOO_LATE.queue_s, 0.5, NEVER_TOO_LATE.idle_s, NEVER_TOO_LATE.total_s)
        story = warmed(play(rules(timeouts=timeouts)), 0.4).arrives("a").sent("a").expect(dispatch("r1"))
        story.after(0.43).expect(dispatch("r2")).sent("a")
        story.after(0.6).expect(refuse(Reason.TTFT_TIMEOUT), cancel(attempt=1), cancel(attempt=2))

    def test_request_is_not_hedged_after_a_reload_switches_hedging_off(self) -> None:
        story = warmed(play(rules())).configured(rules(None)).arrives("a").sent("a").expect(dispatch("r1"))
        story.after(60.0).expect()

    def test_reload_between_attempt_and_duplicate_keeps_the_old_tier(self) -> None:
        story = warmed(play(rules())).arrives("a").sent("a").configured(rules(None)).expect(dispatch("r1"))
        story.after(1.02).expect(dispatch("r2"))

    def test_no_duplicate_goes_to_a_removed_pool(self) -> None:
        story = warmed(play(rules())).arrives("a").sent("a").expect(dispatch("r1"))
        story.configured(policy(pool("q", "s1"), tier("std", hedge=ALWAYS))).after(60.0).expect()


class TestHedgeDenied:
    def test_hedge_is_denied_once_the_share_of_requests_is_used_up(self) -> None:
        story = warmed(play(rules(Hedge(holdout=0.0, budget=0.01))))
        late(story).after(9.0).expect()
        assert denied(story) == {HedgeDenied.BUDGET: 1}

    def test_hedge_is_denied_once_the_share_of_prompt_tokens_is_used_up(self) -> None:
        story = warmed(warmed(play(rules()), 1.0, prompt=100), 1.0, prompt=60_000)
        story.configured(rules(Hedge(holdout=0.0, budget=0.001)))
        story.controller.state.hedges.of_tier(story.controller.policy.tiers["std"]).tokens = 50.0
        late(story, "long", prompt=60_000).expect(dispatch("r2"))
        story.first_token("long", attempt=1).cancelled("long", 2).finishes("long", attempt=1).whatever()
        late(story, "next", prompt=100).expect()
        assert denied(story) == {HedgeDenied.TOKENS: 1}

    def test_hedge_is_denied_once_half_of_the_shared_retry_budget_is_used_up(self) -> None:
        story = warmed(play(rules(Hedge(holdout=0.0, budget=0.9), retry=Retry(0.0))))
        story.controller.state.retry_budget.left = 3.0
        late(story).expect()
        assert denied(story) == {HedgeDenied.SHARED: 1}

    def test_hedge_is_denied_while_requests_wait_in_the_queue(self) -> None:
        story = warmed(play(rules(slots=1))).arrives("a").sent("a").arrives("b").arrives("c").whatever()
        story.after(1.02).expect()
        assert denied(story) == {HedgeDenied.QUEUE: 1}

    def test_hedge_is_denied_while_most_slots_are_in_use(self) -> None:
        story = warmed(play(rules(slots=5)))
        for n in range(8):
            story.arrives(f"b{n}").whatever()
        late(story.arrives("a").whatever().finishes("a").whatever(), "c")
        assert denied(story) == {HedgeDenied.BUSY: 1}

    def test_hedge_is_denied_without_another_replica(self) -> None:
        story = warmed(play(rules(ALWAYS, "r1")))
        late(story).expect()
        assert denied(story) == {HedgeDenied.NO_REPLICA: 1}

    def test_hedge_is_denied_where_the_kv_cache_is_nearly_full(self) -> None:
        story = warmed(play(rules()))
        story.observes("r2", Sample(running=1, waiting=0, kv_fraction=0.9)).whatever()
        target = story.controller.state.fleet.replica("r2")
        assert target is not None
        target.kv.capacity_tokens, target.held_tokens = 1000.0, 850
        late(story).expect()
        assert denied(story) == {HedgeDenied.KV: 1}
        target.held_tokens = 0

    def test_hedge_is_denied_to_a_request_that_broke_a_replica(self) -> None:
        story = warmed(play(rules(ALWAYS, "r1", "r2", "r3")))
        story.arrives("x").sent("x").finishes("x", AttemptOutcome.RESET, body_hash=7)
        story.sent("x").finishes("x", AttemptOutcome.FAILED).whatever()
        late(story, body_hash=7)
        assert denied(story) == {HedgeDenied.SUSPECT: 1}

    def test_hedges_are_denied_for_a_while_after_duplicates_kept_losing(self) -> None:
        story = warmed(play(rules()))
        for n in range(LAST_HEDGES):
            name = f"l{n}"
            late(story, name).expect(dispatch("r2"))
            story.first_token(name, attempt=1).cancelled(name, 2).finishes(name, attempt=1).whatever()
        late(story, "a").expect()
        assert denied(story) == {HedgeDenied.LOSING: 1}
        story.first_token("a").finishes("a").whatever().after(SUSPENSION_S)
        late(warmed(story), "b").expect(dispatch("r2"))


class TestHedgeBudget:
    def test_hedge_budget_allows_a_share_of_the_requests(self) -> None:
        story = warmed(play(rules(Hedge(holdout=0.0, budget=0.05))), n=100)
        issued = 0
        for n in range(200):
            name = f"b{n}"
            late(story, name)
            issued += len(story.attempts[name]) == 2
            for attempt in range(len(story.attempts[name])):
                story.finishes(name, AttemptOutcome.CANCELLED, attempt=attempt + 1)
            story.observes("r1", Sample(healthy=True)).observes("r2", Sample(healthy=True)).whatever()
        # Of 300 requests, and the budget was not full when the first was late.
        assert issued <= 15

    def test_hedge_budget_saves_up_no_more_than_its_burst(self) -> None:
        story = warmed(play(rules()), n=100)
        (of,) = story.controller.snapshot(story.now).hedged_tiers
        assert of.requests_left == BURST
        assert of.tokens_left == pytest.approx(BURST * 100)


class TestHedgeRaces:
    def hedged(self) -> Story:
        return late(warmed(play(rules()))).expect(dispatch("r2")).sent("a")

    def test_duplicate_with_the_first_token_is_committed(self) -> None:
        story = (
            self.hedged()
            .after(0.1)
            .first_token("a")
            .expect(commit(attempt=2, hedged=HedgeResult.WON), cancel(attempt=1))
        )
        story.cancelled("a", 1).finishes("a", attempt=2, output_tokens=5).expect(
            ended(Outcome.OK, replica="r2", attempts=2, hedged=HedgeResult.WON)
        )

    def test_duplicate_without_the_first_token_is_cancelled(self) -> None:
        story = self.hedged().first_token("a", 1).expect(commit(attempt=1, hedged=HedgeResult.LOST), cancel(attempt=2))
        story.cancelled("a", 2).finishes("a", attempt=1, output_tokens=5).expect(
            ended(Outcome.OK, replica="r1", attempts=2, hedged=HedgeResult.LOST)
        )

    def test_request_fails_when_both_attempts_fail(self) -> None:
        story = (
            self.hedged().finishes("a", AttemptOutcome.FAILED, attempt=1).finishes("a", AttemptOutcome.RESET, attempt=2)
        )
        story.expect(refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR, hedged=HedgeResult.FAILED))

    def test_first_token_in_the_tick_of_the_hedge_clock_prevents_a_duplicate(self) -> None:
        story = warmed(play(rules())).arrives("a").sent("a").expect(dispatch("r1")).after(0.9)
        rings_at = story.controller.wake_at()
        story.now = rings_at
        story.first_token("a").expect(commit(attempt=1))
        story.wakes().expect()

    def test_one_attempt_is_committed_when_both_have_a_first_token_in_one_tick(self) -> None:
        story = (
            self.hedged()
            .first_token("a", 2)
            .first_token("a", 1)
            .expect(commit(attempt=2, hedged=HedgeResult.WON), cancel(attempt=1))
        )
        story.finishes("a", attempt=1).finishes("a", attempt=2).expect(ended(Outcome.OK, replica="r2"))

    def test_request_ends_once_when_both_attempts_end_in_one_tick(self) -> None:
        story = self.hedged().first_token("a", 1).finishes("a", attempt=1).finishes("a", attempt=2)
        story.expect(commit(attempt=1), cancel(attempt=2), ended(Outcome.OK, replica="r1"))

    def test_client_that_leaves_while_the_duplicate_connects_cancels_both(self) -> None:
        story = (
            late(warmed(play(rules()))).expect(dispatch("r2")).leaves("a").expect(cancel(attempt=1), cancel(attempt=2))
        )
        story.cancelled("a", 1).cancelled("a", 2).expect(ended(Outcome.ABANDONED))
        assert [story.replica(name).in_flight for name in ("r1", "r2")] == [0, 0]

    def test_first_attempt_goes_on_after_the_duplicate_cannot_connect(self) -> None:
        story = (
            late(warmed(play(rules())))
            .expect(dispatch("r2"))
            .finishes("a", AttemptOutcome.UNREACHABLE, attempt=2)
            .expect()
        )
        story.first_token("a", 1).expect(commit(attempt=1, hedged=HedgeResult.LOST))

    def test_request_past_its_ttft_timeout_is_refused_when_its_duplicate_fails(self) -> None:
        timeouts = Timeouts(ttft_s=10.0)
        story = late(warmed(play(rules(timeouts=timeouts)))).expect(dispatch("r2")).after(5.0).sent("a")
        story.after(7.0).expect()  # the duplicate has its own time
        story.finishes("a", AttemptOutcome.RESET, attempt=2).after(0.0)
        story.expect(refuse(Reason.TTFT_TIMEOUT), cancel(attempt=1))

    def test_duplicate_goes_on_after_the_first_replica_goes_down(self) -> None:
        story = self.hedged().fails("r1").expect(cancel(attempt=1)).cancelled("a", 1).expect()
        story.first_token("a", 2).expect(commit(attempt=2, hedged=HedgeResult.WON))


class TestHedgeViews:
    def test_tokens_of_losing_attempts_are_counted(self) -> None:
        story = late(warmed(play(rules())), prompt=300).expect(dispatch("r2")).sent("a").progress("a", 7, attempt=1)
        story.first_token("a", 2).whatever().cancelled("a", 1).finishes("a", attempt=2, output_tokens=9).whatever()
        (of,) = story.controller.snapshot(story.now).hedged_tiers
        assert (of.wasted_prompt_tokens, of.wasted_output_tokens) == (300, 7)
        assert dict(of.outcomes) == {"won": 1, "lost": 0, "failed": 0}

    def test_snapshot_shows_ttft_thresholds_by_prompt_length(self) -> None:
        story = warmed(play(rules()), 1.0, prompt=100)
        (of,) = story.controller.snapshot(story.now).hedged_pools
        (threshold,) = of.thresholds
        assert (of.pool, threshold.unread_tokens, threshold.samples, threshold.censored) == ("p", 128, 50, 0)
        assert (threshold.quantile, threshold.late_s) == (0.95, pytest.approx(1.0, rel=0.02))
        assert of.won is None

    def test_thresholds_are_shown_at_the_quantiles_of_the_tiers(self) -> None:
        """One request in five takes a second, the others a tenth of it."""
        of_std = rules(replace(ALWAYS, quantile=0.9))
        early = tier("early", hedge=replace(ALWAYS, quantile=0.5))
        story = warmed(play(of_std), 1.0, prompt=100)
        story.configured(replace(of_std, tiers={**of_std.tiers, "early": early}))
        (of,) = story.controller.snapshot(story.now).hedged_pools
        told = {threshold.quantile: threshold.late_s for threshold in of.thresholds}
        assert told == {0.5: pytest.approx(0.1, rel=0.02), 0.9: pytest.approx(1.0, rel=0.02)}

    def test_snapshot_shows_no_hedging_of_removed_pools_and_tiers(self) -> None:
        story = late(warmed(play(rules()))).whatever().configured(policy(pool("q", "s1"), tier("other", hedge=ALWAYS)))
        snapshot = story.controller.snapshot(story.now)
        assert (snapshot.hedged_pools, snapshot.hedged_tiers) == ((), ())


class TestCachedPrompts:
    """One conversation of 4,000 prompt tokens, 3,900 of them cached at the replica that served it, r1."""

    SAID = Prefix((1, 2, 3), (5200, 10_400, 15_600), 16_000)

    def begun(self) -> Story:
        story = warmed(play(rules()), 1.0, prompt=100)
        replica = story.controller.state.fleet.replica("r1")
        assert replica is not None
        replica.cache.sent(self.SAID)
        return story

    def test_duplicate_at_a_cold_replica_pays_for_the_whole_prompt(self) -> None:
        story = self.begun()
        hedges = story.controller.state.hedges.of_tier(story.controller.policy.tiers["std"])
        before = hedges.tokens
        late(story, "turn", prompt=4000, prompt_bytes=16_000, prefix=self.SAID).expect(dispatch("r2"))
        assert hedges.tokens == pytest.approx(before - 4000, abs=100), "it had earned 100"
        story.sent("turn").first_token("turn", attempt=1).cancelled("turn", 2).finishes("turn", attempt=1).whatever()
        assert hedges.wasted_prompt_tokens == 4000
        late(story, "next", prompt=100).expect()
        assert denied(story) == {HedgeDenied.TOKENS: 1}

    def test_duplicate_at_a_warm_replica_pays_for_unread_tokens_alone(self) -> None:
        story = self.begun()
        replica = story.controller.state.fleet.replica("r2")
        assert replica is not None
        replica.cache.sent(self.SAID)
        hedges = story.controller.state.hedges.of_tier(story.controller.policy.tiers["std"])
        before = hedges.tokens
        late(story, "turn", prompt=4000, prompt_bytes=16_000, prefix=self.SAID).expect(dispatch("r2"))
        assert hedges.tokens == pytest.approx(before - 100, abs=100)

    def test_cached_prompt_is_hedged_as_early_as_a_short_one(self) -> None:
        story = warmed(self.begun(), 5.0, prompt=4000)
        story.arrives("turn", prompt=4000, prompt_bytes=16_000, prefix=self.SAID).sent("turn").expect(dispatch("r1"))
        story.after(0.9).expect()
        story.after(0.2).expect(dispatch("r2"))
