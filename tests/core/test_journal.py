"""A journal reads back exactly, and a fresh controller answers its calls in the same way."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from gateway.core import policy as rules
from gateway.core.commands import Command, Cut, Dispatch, Ended, Refuse
from gateway.core.journal.codec import Unreadable
from gateway.core.journal.recorder import CALLS, NOW_AT, Decoder, Encoder, Raised, Recorded, Replay, Told
from gateway.core.policy import LimitKind, Policy
from gateway.core.pool_spec import ReplicaAccess
from gateway.core.request import Affinity, Endpoint, Request
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason, Record, RunningAttempt
from gateway.core.sample import GatewayLoad, LimitLease, PoolLoad, QuotaWindow, ReplicaLoad, Sample
from gateway.core.sessions import Session, StoredResponse
from gateway.core.slo import Objective, Slo
from tests.effort import examples

from .drivers import policies
from .made import STEADY, a_request, policy, pool, tier
from .test_any_driver import AnyDriver

READS = {
    "disbelieved",
    "is_open",
    "knows",
    "wake_at",
    "left",
    "exceeded",
    "limit_uses",
    "alive",
    "states",
    "held",
    "load",
    "memory",
    "position",
    "memory_of",
    "holdings",
    "on_hold",
    "replica_views",
    "snapshot",
    "quarantined",
    "suspects",
    "restarts",
    "explain",
}
"""Public methods that answer a question and change nothing."""
POLICY = policy(pool("p", "r1", "r2"), tier("std"), tier("low", 1, limits=rules.Limits(60.0, None, 3)))


def on_paper(rows: Sequence[object]) -> list[Any]:
    """The rows after a round trip through JSON, which has no infinity."""
    return [json.loads(json.dumps(row, allow_nan=False)) for row in rows]


def header(encoder: Encoder, seed: int = 1) -> dict[str, Any]:
    (row,) = on_paper([{"journal": 3, **encoder.header(seed)}])
    return row


def there_and_back(*calls: Told) -> list[Told]:
    """Calls written to a journal and read back."""
    encoder = Encoder(POLICY)
    decoder = Decoder(header(encoder))
    found: list[Any] = []
    for row in on_paper(encoder.rows(calls)):
        if isinstance(row, dict):
            decoder.let(row)
        else:
            found.append((*decoder.call(row), decoder.answer(row)))
    return found


# ---- what is a call


def methods() -> dict[str, ast.FunctionDef]:
    """The methods of the controller, with inherited ones, from the source: compiled methods have no signatures."""
    found: dict[str, ast.FunctionDef] = {}
    for module, name in (("scheduling/inspect", "Inspector"), ("controller", "Controller")):
        tree = ast.parse((Path(__file__).parents[2] / f"gateway/core/{module}.py").read_text("utf-8"))
        (defined,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        functions = [node for node in defined.body if isinstance(node, ast.FunctionDef)]
        found |= {node.name: node for node in functions if not node.decorator_list}  # no properties
    return found


def arguments_of(name: str) -> list[ast.arg]:
    return methods()[name].args.args[1:]


def test_every_public_controller_method_is_recorded_or_read_only() -> None:
    """A new call that changes state must be in `Recorded`, or replays go wrong."""
    public = {name: node for name, node in methods().items() if not name.startswith("_")}
    answering = {name for name, node in public.items() if ast.unparse(node.returns or node) == "list[Command]"}
    assert answering == CALLS
    assert set(public) - CALLS == READS
    for name in CALLS:
        arguments = [argument.arg for argument in arguments_of(name)]
        assert arguments.index("now") == NOW_AT.get(name, len(arguments) - 1), name


def test_no_recorded_controller_call_makes_another_recorded_call() -> None:
    """It would be recorded twice, and replayed twice."""
    nodes = [node for method in methods().values() for node in ast.walk(method)]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"}
    assert "_requests" in used
    assert used.isdisjoint(CALLS)


def test_journal_header_has_all_arguments_of_a_controller() -> None:
    assert [argument.arg for argument in arguments_of("__init__")] == ["policy", "random"]


def test_journal_can_encode_every_call_and_command() -> None:
    made = a_request(7, POLICY, 1.0)
    record = Record(made, Outcome.OK, None, "p", "r1", 0.1, None, None, 0.5, 10, 20, True, True, 1)
    arguments: dict[str, object] = {
        "Request": made,
        "int": 3,
        "str": "r1",
        "AttemptResult": AttemptResult(AttemptOutcome.COMPLETE, 1, None, 2),
        "Sample": Sample(True, kv_fraction=0.25),
        "Policy": POLICY,
        "Reason": Reason.CLIENT_GONE,
        "float": 1.5,
        "bool": True,
        "GatewayLoad": GatewayLoad(0.1, (ReplicaLoad("r1", 1, 2, 3, 4, 0.5, 6.0),), (PoolLoad("p", (("std", 1),)),)),
        "Mapping[str, object]": {"pools": {"p": {"samples": 3, "costs": {"low": (0.5, 1.0)}}}},
        "Sequence[QuotaWindow]": (QuotaWindow("day", "2026-11-29", 9000.0),),
        "Sequence[LimitLease]": (LimitLease("acme", "std", LimitKind.TOKENS, 900.0, 40.5, 0.1, 3.7),),
        "Sequence[RunningAttempt]": (RunningAttempt(4, "r1", 1.5, None, committed=False),),
    }
    told: list[Told] = [("arrive", (made, 1.0), [])]
    for name in sorted(CALLS):
        kinds = [ast.unparse(argument.annotation or argument) for argument in arguments_of(name)]
        told.append((name, tuple(arguments[kind] for kind in kinds), []))
    facts: dict[type, Sequence[object]] = {Ended: [record], Dispatch: [7, 1, "r1", 5], Refuse: [7, Reason.EVICTED, inf]}
    facts[Cut] = [7, Reason.TOTAL_TIMEOUT, 90]
    for kind in get_args(Command):
        told.append(("wake", (2.0,), [kind(*facts.get(kind, [7, 1]))]))
    assert there_and_back(*told) == told


# ---- values


any_float = st.floats(allow_nan=True, allow_infinity=True)
anything = st.none() | any_float
finishes = st.builds(
    AttemptResult,
    st.sampled_from(AttemptOutcome),
    st.none() | st.integers(),
    retry_after_s=anything,
    status=st.integers(0, 2**63),
)
samples = st.builds(Sample, st.none() | st.booleans(), st.none() | st.integers(), kv_fraction=anything)
asks = st.builds(
    Request,
    id=st.just(5),
    policy=st.just(POLICY),
    tier=st.sampled_from(list(POLICY.tiers.values())),
    model=st.just(POLICY.models["m"]),
    tenant=st.text(),
    endpoint=st.sampled_from(Endpoint),
    stream=st.booleans(),
    prompt_bytes=st.integers(),
    prompt_exact=st.none() | st.integers(),
    max_tokens=st.none() | st.integers(),
    choices=st.integers(),
    body_bytes=st.integers(),
    head_at=any_float,
    body_at=any_float,
    affinity=st.builds(
        Affinity,
        session=st.none() | st.builds(Session, st.text(), st.integers()),
        stored=st.none() | st.builds(StoredResponse, st.text(), st.integers()),
    ),
)
optional_text = st.none() | st.text()
records = st.builds(
    Record,
    request=asks,
    outcome=st.sampled_from(Outcome),
    why=st.none() | st.sampled_from(Reason),
    pool=optional_text,
    replica=optional_text,
    queue_s=any_float,
    ttft_s=anything,
    tpot_s=anything,
    e2e_s=any_float,
    prompt_tokens=st.integers(0, 2**40),
    output_tokens=st.integers(0, 2**40),
    tokens_exact=st.booleans(),
    good=st.booleans(),
    attempts=st.integers(0, 9),
)
refusals = st.builds(Refuse, st.integers(), st.sampled_from(Reason), anything, st.text())


@given(asks, finishes, samples, refusals, records)
@settings(STEADY)
def test_journal_values_are_read_back_bit_for_bit(
    made: Request, finish: AttemptResult, sample: Sample, refusal: Refuse, record: Record
) -> None:
    told: list[Told] = [
        ("arrive", (made, 0.1 + 0.2), [refusal]),
        ("finish", (4, finish, 1e-320), [Ended(replace(record, request=made))]),
        ("observe", ("r1", sample, -0.0), []),
    ]
    # Texts of values are compared: they separate -0.0 from 0.0 and 1 from True, and two nan are equal.
    assert repr(there_and_back(*told)) == repr(told)


def test_journal_contains_no_secrets() -> None:
    replicas = replace(pool("p", "r1"), access=ReplicaAccess("key-of-the-replicas"))
    key = rules.Key(bytes(range(32)), "acme", "std")
    secret = replace(policy(replicas), keys={key.sha256: key})
    encoder = Encoder(POLICY)
    written = json.dumps([encoder.header(1), encoder.rows([("configure", (secret, 1.0), [])])])
    assert "key" not in written
    (_, args, _) = there_and_back(("configure", (secret, 1.0), []))[0]
    assert args[0] == replace(secret, keys={}, pools={"p": replace(replicas, access=ReplicaAccess())})


# ---- references


def test_journal_contains_each_policy_once() -> None:
    other = policy(pool("q", "r9"), generation=2)
    encoder = Encoder(POLICY)
    calls: list[Told] = [("configure", (other, 1.0), []), ("arrive", (a_request(1, other, 2.0), 2.0), [])]
    rows: list[Any] = encoder.rows([("configure", (POLICY, 0.0), []), *calls, *calls])
    assert [row.get("let") for row in rows if isinstance(row, dict)] == ["2"]
    configured = [row[2] for row in rows if not isinstance(row, dict) and row[1] == "configure"]
    assert configured == [[{"Policy": "1"}], [{"Policy": "2"}], [{"Policy": "2"}]]


def test_journal_tells_apart_tiers_and_models_of_different_policies() -> None:
    """The key is checked with the head, the model with the body; a reload may lie between."""
    other = policy(pool("p", "r1"), tier("std", 3))
    mixed = replace(a_request(1, other, 1.0), tier=POLICY.tiers["std"])
    strange = replace(a_request(2, POLICY, 1.0), tier=tier("nowhere", 9), model=rules.Model("odd", ("p",)))
    told: list[Told] = [("arrive", (made, 1.0), []) for made in (mixed, strange)]
    assert there_and_back(*told) == told


# ---- whatever happens


class AnyJournal(AnyDriver):
    """Any legal calls are written, read and replayed to a fresh controller."""

    @initialize(policy=policies(), seed=st.integers(0, 3))
    def begin(self, policy: Policy, seed: int) -> None:
        super().begin(policy, seed)
        self.encoder = Encoder(self.policy)
        self.rows: list[Any] = []
        self.told: list[Told] = []
        self.driver.controller = Recorded(policy, Random(seed), self.tell)

    def tell(self, told: Told) -> None:
        name, args, _ = told
        controller, now = self.driver.controller, args[NOW_AT.get(name, -1)]
        assert isinstance(now, float)
        for number, asked in enumerate(controller.policy.tiers):  # a read changes nothing
            controller.explain(a_request(0, controller.policy, now, tier=asked, prompt=1000 << number), now)
        self.told.append(told)
        self.rows += on_paper(self.encoder.rows([told]))

    def hedge(self, pick: int) -> None:
        """Not a call of the controller, so not a rule here."""

    def teardown(self) -> None:
        if not hasattr(self, "encoder"):
            return
        self.driver.end_all()
        first = header(self.encoder, self.driver.seed)
        # Calls are written some time later: their values must not change until then.
        later = Encoder(self.driver.policy)
        assert on_paper(later.rows(self.told)) == self.rows
        decoder, replay = Decoder(first), Replay(first, Random)
        told = iter(self.told)
        for row in self.rows:
            if isinstance(row, dict):
                decoder.let(row)
                replay.let(row)
                continue
            name, args, answer = next(told)
            assert decoder.call(row) == (name, args)
            assert decoder.answer(row) == answer
            assert on_paper([replay.answer(row)]) == [row[3]]
        assert decoder.open_requests == {}


TestAnyJournal = AnyJournal.TestCase
TestAnyJournal.settings = settings(STEADY, max_examples=examples(25), stateful_step_count=40)


# ---- recording


def test_recorder_reports_every_call_with_its_answer() -> None:
    told: list[Told] = []
    controller = Recorded(POLICY, Random(1), told.append)
    made = a_request(1, POLICY, 0.0)
    calls: list[tuple[Any, ...]] = [
        ("arrive", made, 0.0),
        ("sent", 1, 0.1),
        ("first_token", 1, 0.2),
        ("full", 1, 0.25),
        ("progress", 1, 5, 0.3),
        ("repeats", 1, 0.35),
        ("paused", 1, 0.4),
        ("resumed", 1, 0.5),
        ("observe", "r1", Sample(True), 0.6),
        ("configure", POLICY, 0.7),
        ("drain", "r1", True, 0.7),
        ("lagged", 2.5, 0.75),
        ("told", "other", GatewayLoad(0.1), 0.75),
        ("recall", {"pools": {"p": {"samples": 100}}}, 2.0, 0.75),
        ("share_limits", 2, (), 0.77),
        ("open_windows", (QuotaWindow("day", "2026-11-29", 9000.0),), 0.77),
        ("wake", 0.8),
        ("finish", 1, AttemptResult(AttemptOutcome.TRUNCATED), 0.9),
        ("leave", 1, 1.0, Reason.CLIENT_STALLED),
        ("fail", 1, 1.05),
        ("shut", 1.1),
        ("adopt", a_request(8, POLICY, 0.0), (RunningAttempt(99, "r1", 0.0, None, committed=False),), 1.2),
        ("number_from", 1000, 1.2),
    ]
    assert {name for name, *_ in calls} == CALLS
    answers = [getattr(controller, name)(*args) for name, *args in calls]
    assert told == [(name, tuple(args), answer) for (name, *args), answer in zip(calls, answers, strict=True)]
    assert [type(command) for command in answers[0]] == [Dispatch]


def test_an_exception_of_the_controller_is_recorded_and_replayed() -> None:
    told: list[Told] = []
    outer = Recorded(POLICY, Random(1), told.append)
    with pytest.raises(KeyError):
        outer.sent(99, 1.0)
    assert told == [("sent", (99, 1.0), Raised("KeyError"))]
    encoder = Encoder(POLICY)
    (row,) = on_paper(encoder.rows(told))
    assert row == [1.0, "sent", [99], {"raised": "KeyError"}]
    assert Replay(header(encoder), Random).answer(row) == row[3]
    assert there_and_back(*told) == told


def test_explanations_between_calls_do_not_change_the_replay() -> None:
    told: list[Told] = []
    slo = Slo(ttft=(Objective(0.99, 1.0),), e2e=(Objective(0.99, 8.0),))
    timely = policy(pool("p", "r1", slots=64), tier("std", slo=slo))
    outer, now = Recorded(timely, Random(1), told.append), 1.0
    for number in range(1, 301):
        outer.explain(a_request(0, timely, now, prompt=3000, max_tokens=2000), now)
        prompt = 3000 if number == 300 else 100
        outer.arrive(a_request(number, timely, now, prompt=prompt, max_tokens=2000), now)
        outer.sent(number, now)
        outer.first_token(number, now + 0.02)
        outer.finish(number, AttemptResult(AttemptOutcome.COMPLETE, prompt, 30), now + 0.62)
        now += 0.7
    encoder = Encoder(timely)
    replay, rows = Replay(header(encoder), Random), on_paper(encoder.rows(told))
    assert on_paper([replay.answer(row) for row in rows]) == [row[3] for row in rows]


def test_continued_responses_are_replayed_with_the_replica_and_the_tokens_that_were_known() -> None:
    told: list[Told] = []
    outer = Recorded(POLICY, Random(1), told.append)
    for number, stored in enumerate(
        (None, StoredResponse("r2", 5000), StoredResponse("r2", 90), StoredResponse("r9", 1))
    ):
        outer.arrive(a_request(number + 1, POLICY, 1.0, endpoint=Endpoint.RESPONSES, stored=stored), 1.0)
    encoder = Encoder(POLICY)
    replay, rows = Replay(header(encoder), Random), on_paper(encoder.rows(told))
    assert on_paper([replay.answer(row) for row in rows]) == [row[3] for row in rows]
    affinities = [row[2][0]["Request"][-3]["Affinity"] for row in rows if not isinstance(row, dict)]
    written = [stored for _, _, stored, _ in affinities]
    assert written[:2] == [None, {"StoredResponse": {"replica": "r2", "tokens": 5000}}]


def test_replay_with_another_seed_gives_different_answers() -> None:
    """This shows that a replay can fail."""
    told: list[Told] = []
    limited = policy(pool("p", *(f"r{i}" for i in range(9))), tier("std", limits=rules.Limits(60.0, None, 9)))
    outer = Recorded(limited, Random(1), told.append)
    for number in range(5):
        outer.arrive(a_request(number, limited, 0.0), 0.0)
    encoder = Encoder(limited)
    rows = on_paper(encoder.rows(told))

    def alike(seed: int) -> bool:
        replay = Replay(header(encoder, seed), Random)
        return on_paper([replay.answer(row) for row in rows]) == [row[3] for row in rows]

    assert alike(1)
    assert not alike(2)


# ---- what cannot be read


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ([1.0, "arive", [], []], "is not a call"),
        ([1.0, "sent"], "is not a call"),
        (
            [
                1.0,
                "finish",
                [1, {"AttemptResult": [{"AttemptOutcome": "vanished"}, 1, 1, 0, 200, None, None, False, None, None]}],
                [],
            ],
            "not a member of AttemptOutcome",
        ),
        ([1.0, "finish", [1, {"AttemptResult": [{"AttemptOutcome": "complete"}]}], []], "a list of end, prompt_tokens"),
        ([1.0, "observe", ["r1", {"Sample": {"helthy": True}}], []], "fields of Sample are unknown here: helthy"),
        ([1.0, "observe", ["r1", {"Simple": {}}], []], "cannot be read as Simple"),
        ([1.0, "observe", ["r1", {"a": 1, "b": 2}], []], "does not name its type"),
        ([1.0, "configure", [{"Policy": "9"}], []], "no earlier line describes Policy '9'"),
    ],
)
def test_journal_row_that_is_no_call_is_refused(row: list[object], complaint: str) -> None:
    decoder = Decoder(header(Encoder(POLICY)))
    with pytest.raises(Unreadable, match=complaint):
        decoder.call(row)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"journal": 99}, "not that of a journal in format 3"),
        ({"seed": "one"}, "no seed"),
        ({"policy": {"Policy": {"models": {"map": {}}}}}, "fields of Policy are missing: default_tier, pools, tiers"),
    ],
)
def test_journal_with_an_invalid_header_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(Unreadable, match=complaint):
        Decoder(header(Encoder(POLICY)) | change)


def test_fields_that_an_older_journal_lacks_take_their_defaults() -> None:
    first = header(Encoder(POLICY))
    first["fields"]["AttemptResult"] = ["end", "prompt_tokens"]
    _, args = Decoder(first).call([1.0, "finish", [1, {"AttemptResult": [{"AttemptOutcome": "complete"}, 12]}], []])
    assert args == (1, AttemptResult(AttemptOutcome.COMPLETE, 12), 1.0)


def test_unknown_policy_field_in_a_journal_is_refused() -> None:
    first = header(Encoder(POLICY))
    for written in first["policy"]["Policy"]["pools"]["map"].values():
        written["PoolSpec"]["users"] = True
    with pytest.raises(Unreadable, match="fields of PoolSpec are unknown here: users"):
        Decoder(first)
