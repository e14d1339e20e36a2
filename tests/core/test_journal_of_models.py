"""Splits, fallbacks, mirrors and adapters are in the journal, and a replay decides the same."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

from gateway.core.commands import Command, Dispatch
from gateway.core.journal.recorder import Encoder, Recorded, Replay, Told
from gateway.core.policy import Mirror, Model, Policy
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.sample import Sample
from gateway.core.serving import arm_of

from .made import a_request, policy, pool, tier


def rules(weight: int) -> Policy:
    """A split of two models with one slot each, and a fallback."""
    models = (
        Model("v1", ("a",), mirror=Mirror("shadow", 0.02)),
        Model("v2", ("b",)),
        Model("small", ("s",)),
        Model("chat", ("a", "b"), split=(("v1", 100 - weight), ("v2", weight))),
    )
    pools = [pool("a", "a1", queue_limit=0), pool("b", "b1", queue_limit=0), pool("s", "s1", slots=2, queue_limit=1)]
    return policy(*pools, pool("shadow", "x1"), tier("std", fallback="small"), models=models)


def test_replay_sends_each_session_to_the_same_arm_adapter_and_fallback() -> None:
    told: list[Told] = []
    first = rules(10)
    controller = Recorded(first, Random(3), told.append)
    controller.observe("a1", Sample(adapters=("sql",), max_adapters=1), 0.0)
    sent: list[Dispatch] = []

    def hear(commands: list[Command]) -> None:
        sent.extend(command for command in commands if isinstance(command, Dispatch))

    current = first
    for number in range(1, 60):
        if number == 30:
            current = rules(60)
            hear(controller.configure(current, float(number)))
        session = f"session {number % 7}"
        arm = arm_of(current, current.models["chat"], current.tiers["std"], session)
        adapter = "sql" if arm.name == "v1" and number % 5 == 0 else ""
        made = replace(
            a_request(number, current, float(number), model="chat", adapter=adapter), model=arm, split="chat"
        )
        hear(controller.arrive(made, float(number)))
        if number % 3 == 0 and sent:
            hear(controller.finish(sent.pop(0).attempt, AttemptResult(AttemptOutcome.COMPLETE, 10, 5), number + 0.5))

    encoder = Encoder(first)
    header: dict[str, Any] = json.loads(json.dumps({"journal": 3, **encoder.header(3)}))
    again = Replay(header, Random)
    answers = 0
    for row in json.loads(json.dumps(encoder.rows(told))):
        if isinstance(row, dict):
            again.let(row)
        else:
            assert json.loads(json.dumps(again.answer(row))) == row[3]
            answers += 1
    assert answers == len(told)
    written = json.dumps(encoder.rows(told))
    assert '"small"]}' in written, "no request fell back"
    assert '"sql"' in written
