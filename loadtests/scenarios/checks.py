"""Rules between the fields of a scenario, and between a scenario and its policies."""

from __future__ import annotations

from gateway.core.policy import Policy
from gateway.policy.document import Document
from gateway.policy.errors import Path, PolicyErrors, did_you_mean
from gateway.policy.load import load
from gateway.sim.baselines.baselines import BASELINES, setup
from loadtests.scenarios.file import FOLDER, OURS, PROXIED, ScenarioFile, environment, policy_path


def check(document: Document, scenario: ScenarioFile) -> None:
    """Add errors to `document` for fields that do not fit together."""
    policies = [_policy(document, ("policy",), scenario.policy, scenario)]
    called = [contender.called for contender in scenario.contenders]
    for n, contender in enumerate(scenario.contenders):
        path: Path = ("contenders", n)
        if contender.called in called[:n]:
            document.add(path, f"{contender.called} occurs twice: give one of them a name")
        if contender.policy is not None:
            policies.append(_policy(document, (*path, "policy"), contender.policy, scenario))
        if contender.kind not in (OURS, *PROXIED) and policies[0] is not None:
            try:
                setup(contender.kind, policies[0])
            except ValueError:
                known = did_you_mean(contender.kind, [OURS, *PROXIED, *BASELINES])
                document.add(path, f"{contender.kind} is not a known contender: {known}")
    if scenario.warmup >= scenario.lasts:
        document.add(("warmup",), f"leaves nothing to count: the scenario lasts {scenario.lasts:g} s")
    for n, stream in enumerate(scenario.traffic):
        until = scenario.lasts if stream.until is None else min(stream.until, scenario.lasts)
        if stream.from_ >= until:
            document.add(("traffic", n, "from"), f"is not before its end at {until:g} s, so nothing is sent")
    for n, event in enumerate(scenario.events):
        path = ("events", n)
        if event.at >= scenario.lasts:
            document.add((*path, "at"), f"is not before the end: the scenario lasts {scenario.lasts:g} s")
        for field in ("replica", "list", "unlist"):
            number = getattr(event, field)
            if number is not None and number > scenario.replicas:
                document.add((*path, field), f"is {number}, must be 1 to {scenario.replicas}")
        if event.reload is not None:
            policies.append(_policy(document, (*path, "reload"), event.reload, scenario))
    for policy in policies:
        if policy is not None:
            _names(document, scenario, policy)


def _policy(document: Document, path: Path, name: str, scenario: ScenarioFile) -> Policy | None:
    file = policy_path(name)
    if not file.is_file():
        shipped = [found.name for found in (FOLDER / "policies").glob("*.yaml")]
        document.add(path, f"there is no policy {name}: {did_you_mean(name, shipped)}")
        return None
    urls = [f"http://127.0.0.1:{port}" for port in range(1, scenario.replicas + 1)]
    try:
        return load(file, environment(urls))
    except PolicyErrors as errors:
        document.errors += errors.errors
        return None


def _names(document: Document, scenario: ScenarioFile, policy: Policy) -> None:
    """Tiers of requests, and replicas of events, must be in the policy."""
    replicas = [replica.name for pool in policy.pools.values() for replica in pool.replicas]
    finds = any(pool.discovery for pool in policy.pools.values())
    if len(replicas) != scenario.replicas and not finds:
        document.add(("replicas",), f"the policy has {len(replicas)} replicas, the scenario {scenario.replicas}")
    for n, stream in enumerate(scenario.traffic):
        if stream.tier not in policy.tiers:
            message = f"{stream.tier} is not a tier of the policy: {did_you_mean(stream.tier, policy.tiers)}"
            document.add(("traffic", n, "tier"), message)
    for n, event in enumerate(scenario.events):
        for what in ("drain", "undrain"):
            name = getattr(event, what)
            if name is not None and name not in replicas:
                message = f"{name} is not a replica of the policy: {did_you_mean(name, replicas)}"
                document.add(("events", n, what), message)
