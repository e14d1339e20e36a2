"""The compose file is well formed, and its parts fit each other."""

from __future__ import annotations

import re
from typing import Any, cast
from urllib.parse import urlsplit

import jsonschema
import typer.main

from gateway.policy.load import load
from gateway.policy.sections.units import seconds
from gateway.settings import PREFIX, Settings
from loadtests.__main__ import app as loadtests

from .files import DEPLOY, ROOT, read_yaml

COMPOSE = DEPLOY / "compose" / "compose.yaml"
FILE = read_yaml(COMPOSE)
GATEWAY = FILE["services"]["gateway"]
ENGINES = {name: service for name, service in FILE["services"].items() if name.startswith("vllm")}

STRINGS = {"type": "array", "items": {"type": "string"}}
SERVICE = {
    "type": "object",
    "required": ["image", "restart"],
    "additionalProperties": False,
    "properties": {
        "image": {"type": "string", "pattern": r"^[\w./-]+:v?\d+\.\d+\.\d+$"},
        "build": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "context": {"type": "string"},
                "dockerfile": {"type": "string"},
                "args": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "command": STRINGS,
        "ports": STRINGS,
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "volumes": STRINGS,
        "ipc": {"enum": ["host"]},
        "restart": {"enum": ["unless-stopped", "no"]},
        "healthcheck": {
            "type": "object",
            "required": ["test"],
            "additionalProperties": False,
            "properties": {
                "test": STRINGS,
                "interval": {"type": "string"},
                "timeout": {"type": "string"},
                "retries": {"type": "integer"},
                "start_period": {"type": "string"},
            },
        },
        "stop_grace_period": {"type": "string"},
        "read_only": {"type": "boolean"},
        "cap_drop": STRINGS,
        "security_opt": STRINGS,
        "ulimits": {"type": "object"},
        "deploy": {"type": "object"},
        "profiles": STRINGS,
        "user": {"type": "string"},
        "depends_on": STRINGS,
        "working_dir": {"type": "string"},
    },
}
SHAPE = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string"},
        "services": {"type": "object", "additionalProperties": SERVICE},
        "volumes": {"type": "object"},
    },
}


def test_compose_file_keeps_its_schema() -> None:
    jsonschema.validate(FILE, SHAPE)


def test_compose_builds_this_checkout_and_mounts_the_directory_of_the_policy() -> None:
    context = (COMPOSE.parent / GATEWAY["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / GATEWAY["build"]["dockerfile"]).is_file()
    (mount,) = GATEWAY["volumes"]
    source, target, mode = mount.split(":")
    assert (COMPOSE.parent / source / "policy.yaml").is_file()
    assert (target, mode) == ("/etc/tailgate", "ro")


def test_compose_publishes_both_ports_on_loopback_only() -> None:
    settings = Settings()
    ports = (settings.port, settings.admin_port)
    assert GATEWAY["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]
    assert all("ports" not in service for service in ENGINES.values())


def test_compose_policy_names_the_engines_as_the_network_does() -> None:
    (pool,) = load(COMPOSE.parent / "policy" / "policy.yaml").pools.values()
    assert {urlsplit(replica.url).netloc for replica in pool.replicas} == {f"{name}:8000" for name in ENGINES}
    for service in ENGINES.values():
        assert f"--max-num-seqs={pool.slots}" in service["command"]
        assert f"--max-model-len={pool.max_prompt_tokens}" in service["command"]


def test_compose_policy_serves_the_model_that_the_engines_load() -> None:
    (model,) = {m.name: m for m in load(COMPOSE.parent / "policy" / "policy.yaml").models.values()}.values()
    assert all(f"--served-model-name={model.upstream}" in service["command"] for service in ENGINES.values())


def test_compose_engine_has_a_gpu_and_a_health_check() -> None:
    devices = [service["deploy"]["resources"]["reservations"]["devices"][0] for service in ENGINES.values()]
    assert [device["device_ids"] for device in devices] == [["0"], ["1"]]
    assert all(device["capabilities"] == ["gpu"] for device in devices)
    assert all("/health" in service["healthcheck"]["test"][-1] for service in ENGINES.values())


def test_compose_stop_waits_for_the_drain_and_the_drain_for_the_longest_stream() -> None:
    drain_s = float(GATEWAY["environment"]["TAILGATE_DRAIN_DEADLINE_S"])
    assert seconds(GATEWAY["stop_grace_period"]) > drain_s
    tiers = load(COMPOSE.parent / "policy" / "policy.yaml").tiers.values()
    assert drain_s >= max(tier.timeouts.total_s for tier in tiers)


def test_compose_variables_are_settings_of_the_gateway() -> None:
    assert set(GATEWAY["environment"]) <= {PREFIX + name.upper() for name in Settings.model_fields}


def test_compose_gateway_is_confined() -> None:
    assert GATEWAY["read_only"] is True
    assert GATEWAY["cap_drop"] == ["ALL"]
    assert GATEWAY["security_opt"] == ["no-new-privileges:true"]


def test_the_profile_with_a_store_has_a_second_gateway_and_the_store_that_the_comment_names() -> None:
    services = {name: service for name, service in FILE["services"].items() if service.get("profiles") == ["store"]}
    assert set(services) == {"gateway-2", "valkey"}
    (url,) = re.findall(r"TAILGATE_STORE=(\S+)", COMPOSE.read_text())
    assert urlsplit(url).hostname == "valkey"
    ports = [port.split(":")[1] for service in FILE["services"].values() for port in service.get("ports", ())]
    assert len(ports) == len(set(ports))


def test_load_test_has_the_packages_the_policy_and_options_that_exist_and_is_started_by_the_line_of_the_comment() -> (
    None
):
    service = FILE["services"]["loadtest"]
    assert service["profiles"] == ["loadtest"]
    (lock,) = service["build"]["args"].values()
    assert "numpy==" in (ROOT / lock).read_text()
    first, second, *options = service["command"]
    assert (first, second) == ("load", "run")
    run = cast(Any, typer.main.get_command(loadtests)).get_command(None, "run")
    given = dict(option.split("=", 1) for option in options)
    assert set(given) <= {name for parameter in run.params for name in parameter.opts}
    assert urlsplit(given["--target"]).netloc == f"{service['depends_on'][0]}:{Settings().port}"
    assert service["volumes"] == GATEWAY["volumes"]
    assert given["--policy"].startswith(service["volumes"][0].split(":")[1])
    (line,) = re.findall(r"docker compose .* run .*", COMPOSE.read_text())
    assert line.split()[-1] == "loadtest"
    assert f'--volume "$PWD:{service["working_dir"]}"' in line
