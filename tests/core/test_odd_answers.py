"""A replica whose answers differ from its pool's gets less, then nothing; its refusals are tried elsewhere."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from gateway.core.controller import Controller
from gateway.core.policy import Retry
from gateway.core.pool_spec import Ejection, Health
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason
from gateway.core.snapshot import ReplicaState

from .made import SHADOW, policy, pool, tier
from .playbook import Story, commit, dispatch, ended, play

EJECTION = Ejection(probe_s=5.0)
WATCHED = Health(slow_start_s=0.0, ejection=EJECTION)
NAMES = ("r1", "r2", "r3", "r4")
TOOK_S = 1.0
NOT_FOUND = AttemptResult(AttemptOutcome.REJECTED, status=404)
BAD = AttemptResult(AttemptOutcome.REJECTED, status=400)
FORBIDDEN = AttemptResult(AttemptOutcome.REJECTED, status=403)
EMPTY = AttemptResult(AttemptOutcome.COMPLETE, output_tokens=0, status=200, empty=True)
NO_JSON = AttemptResult(AttemptOutcome.COMPLETE, tokens_seen=25, status=200, empty=True)
REDIRECT = AttemptResult(AttemptOutcome.UNREADABLE, status=302)
USEFUL = AttemptResult(AttemptOutcome.COMPLETE, prompt_tokens=100, output_tokens=20, tokens_seen=20, status=200)


class Traffic:
    """Requests at a steady rate on a pool; some replicas answer at once, and oddly."""

    def __init__(
        self,
        odd: dict[str, AttemptResult],
        *,
        replicas: tuple[str, ...] = NAMES,
        health: Health = WATCHED,
        retry: float = 0.1,
    ) -> None:
        rules = policy(
            pool("p", *replicas, slots=None, health=health), tier("std", admission=SHADOW, retry=Retry(retry))
        )
        self.story = Story(Controller(rules, Random(1)))
        self.odd = odd
        self.bad: set[str] = set()
        self.open: list[tuple[float, str]] = []
        self.sent: list[tuple[float, str]] = []
        self._number = 0

    def run(self, seconds: float, per_s: float = 10.0, bad_share: float = 0.0) -> "Traffic":
        """Every replica refuses `bad_share` of the requests."""
        until = self.story.now + seconds
        share = Random(self._number)
        while (now := self.story.now + 1.0 / per_s) < until:
            while self.open and self.open[0][0] <= now:
                at, name = self.open.pop(0)
                self.story.at(max(at, self.story.now)).finishes(name, **_facts(USEFUL))
            self._number += 1
            name = f"a{self._number}"
            if share.random() < bad_share:
                self.bad.add(name)
            self.story.at(now).arrives(name)
            self._answer(name)
        self.story.at(until)
        return self

    def _answer(self, name: str) -> None:
        """Times that each request was sent."""
        story, tries = self.story, 0
        while name not in story.records and len(story.attempts[name]) > tries:
            tries += 1
            replica = _at(story, name)
            self.sent.append((story.now, replica))
            story.sent(name)
            found = BAD if name in self.bad else self.odd.get(replica)
            if found is None:
                story.first_token(name)
                self.open.append((story.now + TOOK_S, name))
                return
            story.after(0.001).finishes(name, found.end, **_facts(found))

    def share(self, replica: str, since: float = 0.0) -> float:
        """Share of all attempts since `since` that this replica got."""
        counts = Counter(name for at, name in self.sent if at >= since)
        return counts[replica] / max(1, sum(counts.values()))

    def odd_records(self, since: float = 0.0) -> float:
        """Share of requests whose client saw an odd answer."""
        records = [record for record in self.story.records.values() if record.request.body_at >= since]
        odd = [r for r in records if r.outcome is Outcome.INVALID or (r.outcome is Outcome.OK and not r.output_tokens)]
        return len(odd) / len(records)


def _facts(finish: AttemptResult) -> dict[str, Any]:
    names = ("prompt_tokens", "output_tokens", "tokens_seen", "status", "empty")
    return {name: getattr(finish, name) for name in names}


def _at(story: Story, name: str) -> str:
    state = story.controller.state.requests[story.ids[name]]
    assert state.replica is not None
    return state.replica.spec.name


@pytest.mark.parametrize(
    "odd",
    [NOT_FOUND, FORBIDDEN, BAD, EMPTY, NO_JSON, REDIRECT],
    ids=["404", "403", "400", "empty", "no JSON", "redirect"],
)
def test_replica_that_gives_only_instant_empty_answers_is_ejected(odd: AttemptResult) -> None:
    traffic = Traffic({"r2": odd}).run(25.0)
    health = traffic.story.replica("r2").health
    assert traffic.story.replica("r2").state is ReplicaState.EJECTED
    assert health.out == "odd-answers"
    assert "of its answers are refused, empty, unreadable or failed, 0% of its pool's" in health.why
    traffic.run(30.0)
    assert traffic.share("r2", since=25.0) < 0.05
    assert all(traffic.story.replica(name).state is ReplicaState.UP for name in ("r1", "r3", "r4"))


@pytest.mark.parametrize("odd", [NOT_FOUND, BAD, EMPTY, REDIRECT], ids=["404", "400", "empty", "redirect"])
def test_fast_odd_answers_attract_no_requests_before_ejection(odd: AttemptResult) -> None:
    traffic = Traffic({"r2": odd}, health=Health(slow_start_s=0.0, ejection=None)).run(20.0)
    assert traffic.share("r2", since=5.0) < 0.4


def test_replica_that_fails_fast_now_and_then_gets_at_most_its_share() -> None:
    traffic = Traffic(
        {"r2": AttemptResult(AttemptOutcome.FAILED, status=500)}, health=Health(failures=10**6, ejection=None)
    ).run(20.0)
    assert traffic.share("r2", since=5.0) < 0.4


def test_clients_see_almost_none_of_the_404s_of_one_odd_replica() -> None:
    traffic = Traffic({"r2": NOT_FOUND}).run(60.0)
    assert traffic.odd_records() < 0.1
    assert traffic.odd_records(since=10.0) < 0.01


@pytest.mark.parametrize("status", [403, 404])
def test_403_or_404_of_one_replica_is_retried_at_another(status: int) -> None:
    story = play(policy(pool("p", "r1", "r2"), tier("std", retry=Retry(0.1)))).arrives("a").expect(dispatch("r1"))
    story.sent("a").finishes("a", AttemptOutcome.REJECTED, status=status).expect(dispatch("r2"))
    story.served("a", output_tokens=5).expect(commit(), ended(Outcome.OK, attempts=2))
    assert story.replica("r1").failures == 0


def test_404_that_other_replicas_give_too_is_passed_on() -> None:
    story = play(policy(pool("p", "r1", "r2"), tier("std", retry=Retry(0.1)))).arrives("a").expect(dispatch("r1"))
    story.sent("a").finishes("a", AttemptOutcome.REJECTED, status=404).expect(dispatch("r2"))
    story.sent("a").finishes("a", AttemptOutcome.REJECTED, status=404).expect(
        commit(), ended(Outcome.INVALID, why=Reason.UPSTREAM_REJECTED)
    )
    story.arrives("b").whatever()
    story.sent("b").finishes("b", AttemptOutcome.REJECTED, status=404).expect(
        commit(), ended(Outcome.INVALID, attempts=1)
    )


def test_400_of_a_replica_is_not_retried() -> None:
    story = play(policy(pool("p", "r1", "r2"), tier("std", retry=Retry(0.1)))).arrives("a").whatever()
    story.sent("a").finishes("a", AttemptOutcome.REJECTED, status=400).expect(
        commit(), ended(Outcome.INVALID, attempts=1)
    )


def test_404_is_passed_on_if_the_tier_has_no_retries() -> None:
    story = play(policy(pool("p", "r1", "r2"), tier("std", retry=Retry(0.0)))).arrives("a").whatever()
    story.sent("a").finishes("a", AttemptOutcome.REJECTED, status=404).expect(
        commit(), ended(Outcome.INVALID, attempts=1)
    )


def test_404_of_a_duplicate_does_not_end_the_first_attempt() -> None:
    story = play(policy(pool("p", "r1", "r2"), tier("std"))).arrives("a").sent("a").hedges("a", "r2").whatever()
    story.sent("a").finishes("a", AttemptOutcome.REJECTED, status=404).expect()
    story.first_token("a", 1).expect(commit(attempt=1))


def test_only_replica_of_a_pool_is_not_ejected_for_odd_answers() -> None:
    traffic = Traffic({"r1": NOT_FOUND}, replicas=("r1",)).run(30.0)
    assert traffic.story.replica("r1").state is ReplicaState.UP
    assert {record.attempts for record in traffic.story.records.values()} == {1}


def test_no_replica_is_ejected_where_all_answer_oddly() -> None:
    traffic = Traffic(dict.fromkeys(NAMES, NOT_FOUND)).run(30.0)
    assert {traffic.story.replica(name).state for name in NAMES} == {ReplicaState.UP}


@pytest.mark.parametrize("bad_share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("per_s", [5.0, 40.0])
def test_a_client_whose_requests_are_all_bad_ejects_nobody(bad_share: float, per_s: float) -> None:
    traffic = Traffic({}).run(60.0, per_s, bad_share)
    assert all(not traffic.story.replica(name).health.ejections for name in NAMES)


@pytest.mark.parametrize(("odd", "is_load"), [({}, False), ({"r2": BAD}, True), ({"r1": BAD, "r2": BAD}, True)])
def test_refusals_count_as_load_only_of_replicas_that_refuse_more_than_others(
    odd: dict[str, AttemptResult], is_load: bool
) -> None:
    traffic = Traffic(odd)
    loads = []
    for _ in range(20):
        traffic.run(1.0, 20.0, 0.0 if odd else 0.5)
        loads.append(sum(r.imputed for pool in traffic.story.controller.state.fleet for r in pool.replicas.values()))
    assert (sum(loads) > 0) is is_load


def test_odd_replica_is_found_beside_a_client_whose_requests_are_all_bad() -> None:
    traffic = Traffic({"r3": NOT_FOUND}).run(30.0, 20.0, 0.3)
    assert [name for name in NAMES if traffic.story.replica(name).health.ejections] == ["r3"]


def test_ejected_replica_whose_answers_stay_odd_says_so_of_the_requests_that_tried_it() -> None:
    traffic = Traffic({"r2": NOT_FOUND}).run(90.0)
    why = traffic.story.replica("r2").health.why
    assert why.startswith("100% of the requests that tried it are refused, empty, unreadable or failed")


def test_ejections_for_odd_answers_keep_the_cap_of_the_pool() -> None:
    traffic = Traffic({"r1": NOT_FOUND, "r2": NOT_FOUND}).run(40.0)
    assert [traffic.story.replica(name).state for name in ("r1", "r2")].count(ReplicaState.EJECTED) == 1


def test_replica_is_back_after_probes_show_that_it_answers_like_the_others() -> None:
    traffic = Traffic({"r2": NOT_FOUND}).run(15.0)
    assert traffic.story.replica("r2").state is ReplicaState.EJECTED
    traffic.odd.clear()
    traffic.run(90.0)
    assert traffic.story.replica("r2").state is ReplicaState.UP
    assert traffic.share("r2", since=100.0) > 0.15


def test_replica_that_still_answers_oddly_stays_ejected() -> None:
    traffic = Traffic({"r2": NOT_FOUND}).run(120.0)
    assert traffic.story.replica("r2").state is ReplicaState.EJECTED
    assert traffic.odd_records(since=20.0) < 0.01


def test_empty_answer_is_not_learned_as_a_latency() -> None:
    story = play(policy(pool("p", "r1", slots=8), tier("std")))
    for number in range(50):
        story.arrives(f"a{number}", stream=False).sent(f"a{number}").after(0.001).finishes(
            f"a{number}", output_tokens=0, empty=True
        )
    assert all(facts.samples == 0 for facts in story.controller.forecaster.view().pools)
