"""Scenario files are read, and their errors are reported by line and field."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.policy import PolicyErrors, load
from loadtests.experiments.registry import EXPERIMENTS
from loadtests.scenarios.contender import PROXIES, key_of
from loadtests.scenarios.file import environment, policy_path, shipped
from loadtests.scenarios.load import load_scenario

MIN = """\
apiVersion: tailgate/v1
kind: Scenario
title: It
contenders: [tailgate]
traffic:
  - {tier: standard, rate: 10/s, prompt_tokens: 100, output_tokens: 5}
"""
WANTED = {
    "overload", "free-flood", "long-among-short", "stragglers", "replica-killed", "rolling-restart", "policy-reload",
    "ballooning", "retry-storm", "cold-start", "burst-2x", "coordinated-omission", "decider-killed", "relay-killed",
    "rollout", "scale-from-zero", "store-lost",
}  # fmt: skip


def scenario(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "it.yaml"
    path.write_text(text)
    return path


def test_every_expected_scenario_is_shipped() -> None:
    assert set(shipped()) == WANTED


@pytest.mark.parametrize("name", sorted(WANTED))
def test_shipped_scenario_is_consistent(name: str) -> None:
    of = load_scenario(name)
    if of.experiment is not None:
        assert of.experiment in EXPERIMENTS
        return
    urls = [f"http://127.0.0.1:{9000 + n}" for n in range(of.replicas)]
    for contender in of.contenders:
        policy = load(policy_path(contender.policy or of.policy), environment(urls))
        names = [replica for pool in policy.pools.values() for replica in pool.replicas]
        finds = any(pool.discovery for pool in policy.pools.values())
        assert [replica.url for replica in names] == ([] if finds else urls)
        assert {stream.tier for stream in of.traffic} <= set(policy.tiers)
        for event in of.events:
            assert event.at < of.lasts
            assert (event.replica or 1) <= of.replicas
            assert {event.drain or event.undrain} <= {None, *(replica.name for replica in names)}
            if event.reload is not None:
                load(policy_path(event.reload), environment(urls))
        hashes = {hashlib.sha256(key_of(tier).encode()).digest(): tier for tier in policy.tiers}
        assert {sha256: key.tier for sha256, key in policy.keys.items()} in ({}, hashes)
        assert contender.kind in {*PROXIES, "tailgate", "round-robin"}
    arrivals = list(of.arrivals(1))
    assert [a.at for a in arrivals] == sorted(a.at for a in arrivals)
    assert arrivals[-1].at < of.lasts


def test_stream_sends_only_between_its_from_and_until(tmp_path: Path) -> None:
    flood = "  - {tier: free, rate: 20/s, prompt_tokens: 9, output_tokens: 5, from: 10s, until: 20s}"
    text = f"{MIN}{flood}\nlasts: 30s\n"
    of = load_scenario(str(scenario(tmp_path, text)))
    free = [a.at for a in of.arrivals(1) if a.tier == "free"]
    assert free[0] >= 10
    assert free[-1] < 20
    assert len(free) == pytest.approx(200, rel=0.3)
    assert len(list(of.arrivals(1))) - len(free) == pytest.approx(300, rel=0.3)


def test_scenario_at_a_multiple_of_the_rate_is_otherwise_unchanged(tmp_path: Path) -> None:
    of = load_scenario(str(scenario(tmp_path, MIN)))
    once, twice = list(of.arrivals(1)), list(of.arrivals(1, 2.0))
    assert len(twice) == pytest.approx(2 * len(once), rel=0.1)
    assert [a.at for a in once[:50]] == pytest.approx([2 * a.at for a in twice[:50]])


def test_quick_scenario_takes_a_part_of_the_time(tmp_path: Path) -> None:
    of = load_scenario(str(scenario(tmp_path, MIN)))
    assert max(a.at for a in of.arrivals(1, part=0.2)) < 12


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("events: [{at: 1s}]", r"it.yaml:7: events\[0\]: says nothing that happens"),
        ("events: [{at: 1s, fault: slow}]", "has a fault and no replica"),
        ("events: [{at: 1s, fault: slo, replica: 1}]", "slo is not a fault: did you mean slow"),
        ("events: [{at: 1s, drain: r1, reload: x.yaml}]", "says drain and reload: give one"),
        ("profil: default", "profil: unknown field: did you mean profile"),
        ("profile: defalt", "defalt is not a profile: did you mean default"),
        ("policy: one-teir.yaml", "policy: there is no policy one-teir.yaml: did you mean one-tier.yaml"),
        (
            "events: [{at: 2m, fault: slow, replica: 1}]",
            r"events\[0\].at: is not before the end: the scenario lasts 60 s",
        ),
        ("events: [{at: 1s, fault: slow, replica: 5}]", r"events\[0\].replica: is 5, must be 1 to 4"),
        ("events: [{at: 1s, drain: s1}]", r"events\[0\].drain: s1 is not a replica of the policy"),
        ("policy: one-tier.yaml\nevents: [{at: 1s, reload: tiers.yaml}, {at: 2s, drain: r9}]", "r9 is not a replica"),
        ("lasts: 30s\nwarmup: 30s", "it.yaml:8: warmup: leaves nothing to count: the scenario lasts 30 s"),
        ("events: [{at: 1s, unlist: 5}]", r"events\[0\].unlist: is 5, must be 1 to 4"),
        ("replicas: 3", "it.yaml:7: replicas: the policy has 4 replicas, the scenario 3"),
    ],
)
def test_bad_scenario_field_is_refused(tmp_path: Path, more: str, told: str) -> None:
    with pytest.raises(PolicyErrors, match=told):
        load_scenario(str(scenario(tmp_path, f"{MIN}{more}\n")))


@pytest.mark.parametrize(("when", "ends"), [("from: 20s, until: 10s", 10), ("from: 70s", 60)])
def test_scenario_stream_that_never_sends_is_refused(when: str, ends: int, tmp_path: Path) -> None:
    text = MIN.replace("{tier: standard", f"{{{when}, tier: standard")
    with pytest.raises(PolicyErrors, match=rf"traffic\[0\].from: is not before its end at {ends} s"):
        load_scenario(str(scenario(tmp_path, text)))


def test_scenario_with_two_contenders_of_one_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyErrors, match=r"contenders\[1\]: tailgate occurs twice: give one of them a name"):
        load_scenario(str(scenario(tmp_path, MIN.replace("[tailgate]", "[tailgate, tailgate]"))))


def test_unknown_tier_and_contender_are_named(tmp_path: Path) -> None:
    text = MIN.replace("tier: standard", "tier: standart").replace("[tailgate]", "[tailgate, haproxy]")
    with pytest.raises(PolicyErrors) as caught:
        load_scenario(str(scenario(tmp_path, text)))
    told = str(caught.value)
    assert "traffic[0].tier: standart is not a tier of the policy: did you mean standard?" in told
    assert "contenders[1]: haproxy is not a known contender" in told


def test_unknown_scenario_gets_a_suggestion() -> None:
    with pytest.raises(PolicyErrors, match="did you mean overload"):
        load_scenario("overlod")


def test_scenario_list_names_every_scenario_once() -> None:
    with pytest.raises(PolicyErrors) as refused:
        load_scenario("zzzz")
    assert str(refused.value).count("overload") == 1
