"""Fleets and faults as they are written on a command line."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gateway.sim.engine.fleet import Fault, FleetSpec, Harm, Host, fault_of, fleet_of
from gateway.sim.engine.profiles import DEFAULT, PROFILES
from gateway.sim.engine.sequences import EngineRequest
from tests.sim.made import policy

SLOW = PROFILES["slow"]
POLICY = policy(replicas=2)


def test_fleet_option_with_one_profile_uses_it_in_every_pool() -> None:
    rules = policy(replicas=2)
    hosts = FleetSpec(fleet_of("slow", rules)).hosts(rules)
    assert {name: host.profile for name, host in hosts.items()} == {"r1": SLOW, "r2": SLOW}


def test_fleet_option_can_give_a_replica_another_profile_than_its_pool() -> None:
    rules = policy(replicas=3)
    hosts = FleetSpec(fleet_of("p=short, r2=slow", rules)).hosts(rules)
    assert [host.profile.name for host in hosts.values()] == ["short", "slow", "short"]


def test_replica_missing_in_the_fleet_option_gets_the_default_profile() -> None:
    rules = policy(replicas=2)
    hosts = FleetSpec(fleet_of("r2=slow", rules)).hosts(rules)
    assert [host.profile for host in hosts.values()] == [DEFAULT, SLOW]


@pytest.mark.parametrize("text", ["", "fast", "p=", "p=fast", "q=slow", "=slow"])
def test_unknown_profile_or_replica_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"known: default|neither a pool nor a replica of the policy; pools: p"):
        fleet_of(text, policy())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("r1@30=slow:4", Fault(30.0, "r1", Harm.SLOW, 4.0)),
        ("10.0.0.1:8000@0.5=down", Fault(0.5, "10.0.0.1:8000", Harm.DOWN)),
        ("a@b@1=dead", Fault(1.0, "a@b", Harm.DEAD)),
        ("r1@30=hung", Fault(30.0, "r1", Harm.HUNG)),
        ("r1@30=busy", Fault(30.0, "r1", Harm.BUSY)),
        ("r1@30=balloon", Fault(30.0, "r1", Harm.BALLOON)),
        ("r1@60=recover", Fault(60.0, "r1", Harm.RECOVER)),
    ],
)
def test_fault_is_read_from_its_text(text: str, fault: Fault) -> None:
    assert fault_of(text) == fault


WRONG = """
- r1 r1@1 @1=down r1@=down r1@-1=down r1@inf=down r1@1=lost r1@1=slow r1@1=down:2 r1@1=slow:0 r1@1=slow:x r1@1=slow:inf
"""


@pytest.mark.parametrize("text", ["", *WRONG.split()])
def test_malformed_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a fault is written REPLICA@SECONDS=HARM"):
        fault_of(text)


def test_simulated_host_is_busy_while_a_step_is_under_way() -> None:
    host = Host("r1", DEFAULT)
    host.add(EngineRequest(1, 100, 1), 2.0)
    assert host.busy_s(2.01) == pytest.approx(0.01)
    *_, end = host.advance(host.due)
    busy_s = end.at - 2.0
    assert host.due == math.inf
    assert host.busy_s(5.0) == pytest.approx(busy_s)
    host.add(EngineRequest(2, 100, 10), 5.0)
    host.abort(2, 5.001)
    idle_at = host.due
    host.advance(idle_at)
    assert host.busy_s(9.0) == pytest.approx(busy_s + idle_at - 5.0)


# ---- profiles in files


def test_a_profile_can_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "h100.json"
    file.write_text(json.dumps(asdict(replace(DEFAULT, name="h100", step_base_s=0.02))))
    (profile,) = fleet_of(str(file), POLICY).values()
    assert (profile.name, profile.step_base_s) == ("h100", 0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_base_s": None}, r"step_base_s is None: write a number of seconds"),
        ({"max_num_seqs": 1.5}, r"max_num_seqs is 1.5: write a whole number"),
        ({"name": 3}, r"name is 3: write text"),
        ({"slots": 3}, r"slots is not a field of a profile; known: name, max_model_len"),
        ({"step_base_s": 0}, r"step_base_s must be above 0"),
        ({"path_s": -0.001}, r"path_s must not be below 0"),
        ({"kv_s_per_token": math.nan}, r"kv_s_per_token is nan: write a number of seconds"),
        ({"path_s": 10**400}, r"path_s is 10+: write a number of seconds"),
    ],
)
def test_bad_engine_profile_field_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    file = tmp_path / "h100.json"
    file.write_text(json.dumps(asdict(DEFAULT) | change))
    with pytest.raises(ValueError, match=message):
        fleet_of(str(file), POLICY)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "is not a profile"), ("{}", "lacks name, max_model_len")]
)
def test_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "h100.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        fleet_of(str(file), POLICY)
    with pytest.raises(ValueError, match=r"absent.json cannot be read: No such file"):
        fleet_of("absent.json", POLICY)


def test_missing_profile_file_is_named_with_its_option() -> None:
    with pytest.raises(ValueError, match=r"^--fleet: nope is not an engine profile; known: default, "):
        fleet_of("nope", policy())
    with pytest.raises(ValueError, match=r"^--fleet: nope.json cannot be read: "):
        fleet_of("nope.json", policy())
