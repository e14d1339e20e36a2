"""Failures that requests cause take no replica from others; a replica that fails alone goes out, whoever asks."""

import re
from pathlib import Path
from random import Random

import pytest

from gateway.core.commands import Dispatch
from gateway.core.controller import Controller
from gateway.core.fleet.health.evidence import EVIDENCE, Evidence
from gateway.core.fleet.judging.answer_judge import ALONE_S
from gateway.core.pool_spec import Ejection, Health
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome
from gateway.core.sample import Proof, Sample
from gateway.core.snapshot import ReplicaState

from .made import SHADOW, policy, pool, tier
from .playbook import Story

FAILURES = {
    "500": AttemptResult(AttemptOutcome.FAILED, status=500),
    "502": AttemptResult(AttemptOutcome.FAILED, status=502),
    "error event": AttemptResult(AttemptOutcome.FAILED, status=200),
    "abort": AttemptResult(AttemptOutcome.TRUNCATED, status=200),
    "cut stream": AttemptResult(AttemptOutcome.TRUNCATED),
    "reset": AttemptResult(AttemptOutcome.RESET),
}
PAGE = Path(__file__).parents[2] / "docs/internals/tail.md"
HEALTH = Health(slow_start_s=0.0, ejection=Ejection())


class Traffic:
    """A good and a bad tenant. `broken`: replicas that fail every request."""

    def __init__(self, replicas: int, kind: str = "500", **rules: object) -> None:
        names = tuple(f"r{n}" for n in range(1, replicas + 1))
        made = policy(pool("p", *names, slots=64, health=HEALTH), tier("std", admission=SHADOW))
        self.story = Story(Controller(made, Random(1)))
        self.broken: set[str] = set()
        self.failure = FAILURES[kind]
        self.good = self.good_ok = 0
        self._number = 0

    def ask(self, tenant: str, *, is_bad: bool = False, body: int | None = None) -> bool:
        """One request. Returns whether it was served."""
        story = self.story
        self._number += 1
        name, tries = f"a{self._number}", 0
        body = self._number if body is None else body
        story.after(0.05).whatever().arrives(name, tenant=tenant, body_hash=body)
        while name not in story.records and len(story.attempts[name]) > tries:
            tries += 1
            at = [c.replica for c in story.commands if isinstance(c, Dispatch)][-1]
            story.sent(name)
            if is_bad or at in self.broken:
                failed = self.failure
                story.finishes(name, failed.end, status=failed.status, body_hash=body)
            else:
                story.first_token(name).finishes(name, output_tokens=5)
        return story.records[name].outcome is Outcome.OK

    def states(self) -> list[ReplicaState]:
        """State of each replica."""
        return [replica.state for replica in self.story.pool("p").replicas]


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("rate", [1, 5], ids=["one for one", "five for one"])
def test_tenant_whose_every_body_fails_takes_no_answer_from_another(kind: str, replicas: int, rate: int) -> None:
    traffic, served = Traffic(replicas, kind), 0
    assert traffic.ask("good")
    for _ in range(200):
        for _ in range(rate):
            assert not traffic.ask("bad", is_bad=True)
        served += traffic.ask("good")
    assert served >= 196, "at most 2%"
    assert traffic.states() == [ReplicaState.UP] * replicas


def test_two_tenants_whose_bodies_fail_everywhere_eject_no_replica() -> None:
    traffic, served = Traffic(3), 0
    for number in range(200):
        traffic.ask(f"bad{number % 2}", is_bad=True)
        served += traffic.ask("good")
    assert served == 200


def test_users_of_one_tenant_take_no_replica_from_each_other() -> None:
    """Without keys all users are one tenant. Half of its bodies fail, at all replicas alike."""
    traffic, served = Traffic(3), 0
    for _ in range(400):
        traffic.ask("", is_bad=True)
        served += traffic.ask("")
    assert served >= 392


@pytest.mark.parametrize("tenants", [("a", "b"), ("",)], ids=["two tenants", "no keys"])
@pytest.mark.parametrize("kind", FAILURES)
def test_replica_that_fails_alone_is_ejected_and_says_why(kind: str, tenants: tuple[str, ...]) -> None:
    traffic = Traffic(3, kind)
    for number in range(30):
        assert traffic.ask(tenants[number % len(tenants)])
    traffic.broken = {"r2"}
    failed = sum(not traffic.ask(tenants[number % len(tenants)]) for number in range(60))
    health = traffic.story.replica("r2").health
    assert health.out == "failing"
    assert re.search(r"it failed \d times in a row, its pool 0 of \d+ meanwhile", health.why)
    assert health.last_error
    assert failed <= 8
    assert traffic.states().count(ReplicaState.UP) == 2


def test_failures_of_one_tenant_among_several_eject_no_replica() -> None:
    """Its bodies may be the cause, wherever they were sent. They are, in its session."""
    traffic = Traffic(3)
    for _ in range(20):
        assert traffic.ask("good")
    traffic.broken = {"r2"}
    for _ in range(60):
        traffic.ask("bad")
    assert traffic.states() == [ReplicaState.UP] * 3
    traffic.story.after(ALONE_S)
    for _ in range(60):
        traffic.ask("bad")
    assert traffic.story.replica("r2").health.out == "failing", "nobody else is there any more"


def test_one_body_ejects_no_replica() -> None:
    traffic = Traffic(3)
    for _ in range(20):
        assert traffic.ask("")
    for _ in range(50):
        traffic.ask("", is_bad=True, body=-7)
    assert traffic.states() == [ReplicaState.UP] * 3


def test_two_of_three_replicas_that_fail_are_both_ejected() -> None:
    traffic = Traffic(3)
    for number in range(30):
        traffic.ask(f"t{number % 2}")
    traffic.broken = {"r1", "r2"}
    for number in range(120):
        traffic.ask(f"t{number % 2}")
    assert traffic.states() == [ReplicaState.EJECTED, ReplicaState.EJECTED, ReplicaState.UP]


def test_nobody_is_ejected_where_all_replicas_fail() -> None:
    traffic = Traffic(3)
    for number in range(30):
        traffic.ask(f"t{number % 2}")
    traffic.broken = {"r1", "r2", "r3"}
    for number in range(200):
        traffic.ask(f"t{number % 2}")
    assert traffic.states() == [ReplicaState.UP] * 3


def ejected(kind: str = "500") -> Traffic:
    """r2 is out, because it failed alone."""
    traffic = Traffic(3, kind)
    for number in range(30):
        traffic.ask(f"t{number % 2}")
    traffic.broken = {"r2"}
    while traffic.story.replica("r2").state is ReplicaState.UP:
        traffic.ask(f"t{traffic._number % 2}")
    return traffic


def test_failing_replica_is_back_soon_after_it_answers_again() -> None:
    traffic = ejected()
    traffic.broken = set()
    began_at = traffic.story.now
    while traffic.story.replica("r2").state is not ReplicaState.UP:
        assert traffic.ask(f"t{traffic._number % 2}")
        assert traffic.story.now < began_at + 15.0


def test_failing_replica_is_back_without_traffic_by_a_completion_of_our_own() -> None:
    traffic = ejected()
    now = traffic.story.now
    traffic.story.observes("r2", Sample(healthy=True, proof=Proof.LISTED, asked_at=now))
    assert traffic.story.replica("r2").state is ReplicaState.EJECTED, "it lists its models all the time"
    traffic.story.observes("r2", Sample(healthy=True, proof=Proof.COMPLETED, asked_at=now))
    assert traffic.story.replica("r2").state is ReplicaState.UP


def test_probe_is_no_request_of_a_tenant_that_just_failed() -> None:
    traffic = ejected()
    for _ in range(400):
        traffic.story.whatever()
        traffic.ask("bad", is_bad=True)
    ejections = traffic.story.replica("r2").health.ejections
    assert ejections == (("failing", 1),), "a probe of the bad tenant would have failed"


def test_half_open_replica_is_tried_with_a_request_that_did_not_just_fail() -> None:
    traffic = Traffic(2)
    traffic.ask("good")
    traffic.ask("bad", is_bad=True)
    story = traffic.story
    story.fails("r2").recovers("r2").whatever()
    assert story.replica("r2").state is ReplicaState.PROBING
    for number in range(4):
        story.arrives(f"bad{number}", tenant="bad", body_hash=-number)
    assert story.replica("r2").in_flight == 0
    story.arrives("good", tenant="good")
    assert story.replica("r2").in_flight == 1


def test_table_of_evidence_in_the_docs_is_the_one_that_is_read() -> None:
    groups: dict[Evidence, list[str]] = {}
    for seen, one in EVIDENCE.items():
        groups.setdefault(one, []).append(seen.value)
    rows = []
    for one, seen_of in groups.items():
        out = "" if one.out is None else f"`{one.out}`"
        answer = "yes" if one.is_answer else ""
        rows.append(f"| {'; '.join(seen_of)} | {one.says} | {one.about} | {answer} | {out} |")
    head = "| observation | process | about | answer | ejected as |\n|---|---|---|---|---|\n"
    assert head + "\n".join(rows) + "\n\n" in PAGE.read_text()
