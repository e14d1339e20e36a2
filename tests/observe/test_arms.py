"""The arms of a split are counted apart."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gateway.core.policy import Model, Policy
from gateway.core.results import Outcome, Reason
from gateway.observe.metrics.families import RequestFamilies
from gateway.observe.metrics.metrics import Metrics

from .made import ASK, OK, POLICY


def split(big: int = 95, small: int = 5) -> Policy:
    models = {name: Model(name, ("short",)) for name in ("v1", "v2")}
    shared = Model("chat", ("short",), split=(("v1", big), ("v2", small)))
    return replace(POLICY, models={**models, "chat": shared})


class Told:
    """Metrics of the requests of a split."""

    def __init__(self) -> None:
        self.policy = split()
        self.metrics = Metrics(self.policy)

    def hear(self, arm: str, requests: int, ttft_s: float, failed: int = 0) -> None:
        """This many requests, of which `failed` failed; TTFT is spread from .5 to 1.5 times the given one."""
        random = Random(f"{arm} {requests}")
        request = replace(ASK, policy=self.policy, model=self.policy.models[arm], split="chat")
        for number in range(requests):
            ok = replace(OK, request=request, ttft_s=ttft_s * (0.5 + random.random()))
            error = replace(
                OK, request=request, outcome=Outcome.ERROR, why=Reason.UPSTREAM_ERROR, good=False, ttft_s=None
            )
            self.metrics.ended(error if number < failed else ok)


def test_changed_split_weights_keep_the_counters() -> None:
    told = Told()
    told.hear("v1", 950, 0.2)
    told.hear("v2", 50, 0.4)
    told.metrics.configure(split(80, 20))
    families = {family.name: family for family in RequestFamilies(told.metrics).collect()}
    rows = {
        tuple(sample.labels.values()): sample.value
        for sample in families["tailgate_arm_requests"].samples
        if sample.value
    }
    assert rows == {("chat", "v1", "ok"): 950, ("chat", "v2", "ok"): 50}


def test_requests_of_other_models_count_for_no_split_arm() -> None:
    told = Told()
    told.metrics.ended(replace(OK, request=replace(ASK, policy=told.policy, model=told.policy.models["v1"])))
    told.metrics.ended(replace(OK, request=replace(ASK, policy=told.policy, split="gone")))
    assert all(not any(facts.outcomes.values()) for facts in told.metrics.arms.facts.values())


def test_ttft_and_e2e_of_each_arm_are_exported() -> None:
    told = Told()
    told.hear("v1", 30, 0.2)
    told.hear("v2", 20, 0.2, failed=5)
    families = {family.name: family for family in RequestFamilies(told.metrics).collect()}
    for name in ("tailgate_arm_ttft_seconds", "tailgate_arm_e2e_seconds"):
        counts = {s.labels["arm"]: s.value for s in families[name].samples if s.name == f"{name}_count"}
        assert counts == {"v1": 30, "v2": 15}, "only requests that finished have an end"
