"""The gateway accepts every deployed policy, and none is open to strangers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.exposure import exposure_error
from gateway.policy.load import load

from .files import DEPLOY, manifest, read_yaml

POLICIES = sorted(DEPLOY.rglob("policy.yaml"))


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_deployed_policy_loads_and_may_be_served_on_every_address(path: Path) -> None:
    policy = load(path, environment={})
    assert exposure_error(policy, "0.0.0.0") is None


def test_only_compose_which_publishes_on_loopback_serves_without_keys() -> None:
    without = [path.parent.parent.name for path in POLICIES if not load(path, environment={}).keys]
    assert without == ["compose"]
    gateway = read_yaml(DEPLOY / "compose" / "compose.yaml")["services"]["gateway"]
    assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])


def test_deployed_policies_contain_no_published_key() -> None:
    hashes = {key for path in POLICIES for key in load(path, environment={}).keys}
    assert hashes == {bytes(32)}


def test_deployed_slots_are_divided_among_the_gateways() -> None:
    """vLLM's default is 256 sequences."""
    for folder, gateways in (
        ("base", manifest("deployment")["spec"]["replicas"]),
        (
            "overlays/example",
            read_yaml(DEPLOY / "kubernetes/overlays/example/kustomization.yaml")["replicas"][0]["count"],
        ),
    ):
        slots = load(DEPLOY / "kubernetes" / folder / "policy.yaml").pools["main"].slots
        assert slots == 256 // gateways


def test_the_replicas_of_a_base_policy_can_be_reached_through_its_network_policy() -> None:
    port = manifest("networkpolicy")["spec"]["egress"][-1]["ports"][0]["port"]
    replicas = load(DEPLOY / "kubernetes/base/policy.yaml").pools["main"].replicas
    assert all(replica.url.endswith(f":{port}") for replica in replicas)
