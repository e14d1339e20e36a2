"""The policies that people start from, and the schema that completes them in an editor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from ruamel.yaml import YAML

from gateway.policy import load
from gateway.policy.json_schema import json_schema
from gateway.policy.notes import EXAMPLE_KEYS, notes
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.load import load_text

from .sample import SAMPLE

FOLDER = Path(__file__).parents[2] / "policies"
SCHEMA_FILE = FOLDER / "tailgate.schema.json"
FILES = sorted(FOLDER.glob("*.yaml"))
NIGHT = """\
apiVersion: tailgate/v1
kind: Workload
rate: 11/s
duration: 2m
model: mistral-small
prompt_tokens: azure-conversation-prompt
output_tokens: azure-conversation-answer
tiers:
  interactive: {share: 30%, tenants: 20}
  batch: {share: 70%, tenants: 4, output_tokens: {median: 600, sigma: 0.6, most: 4096}}
"""


def accepted(text: str) -> bool:
    document: Any = YAML(typ="safe", pure=True).load(text)
    return bool(jsonschema.Draft202012Validator(orjson.loads(json_schema())).is_valid(document))


def test_expected_ready_made_policies_exist() -> None:
    assert {"default", "chat-with-tiers", "short-long-split", "batch-and-interactive"} <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_ready_made_policy_is_valid_and_every_field_has_an_effect(file: Path) -> None:
    policy = load(file, {})
    assert [note for note in notes(policy) if not note.startswith(("keys: there are none", "keys: those of"))] == []


def test_keys_of_ready_made_policies_are_known_as_examples() -> None:
    """Nobody has them, so `tailgate check` names them in a copy."""
    policies = {file.stem: load(file, {}) for file in FILES}
    assert {sha256.hex() for policy in policies.values() for sha256 in policy.keys} == EXAMPLE_KEYS
    (note,) = notes(policies["chat-with-tiers"])
    assert note.startswith("keys: those of acme, globex, trial-users are examples that nobody has: replace them")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_ready_made_policy_names_and_passes_the_schema(file: Path) -> None:
    text = file.read_text()
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA_FILE.name}\n")
    assert accepted(text)


def test_interactive_requests_of_a_ready_made_policy_do_not_wait_for_a_batch_backlog() -> None:
    policy = load(FOLDER / "batch-and-interactive.yaml")
    found = simulate(policy, load_text(NIGHT, "night.yaml").arrivals(1), seed=1, options=Options(warmup_s=30.0))
    interactive, batch = found.tiers["interactive"], found.tiers["batch"]
    assert batch.queue.p50 is not None
    assert batch.queue.p50 > 5.0, "there is a backlog"
    assert batch.attainment == 1.0
    assert interactive.attainment is not None
    assert interactive.attainment > 0.99


def test_default_policy_fits_the_replicas_that_make_run_starts() -> None:
    policy = load(FOLDER / "default.yaml", {})
    pools = {name: [replica.url for replica in pool.replicas] for name, pool in policy.pools.items()}
    assert pools == {
        "short": ["http://127.0.0.1:8101", "http://127.0.0.1:8102", "http://127.0.0.1:8103"],
        "long": ["http://127.0.0.1:8104"],
    }
    model = policy.model("emulated-8b")
    assert model is not None
    assert not policy.keys


def test_committed_policy_schema_is_current() -> None:
    assert SCHEMA_FILE.read_text() == json_schema(), (
        "make it anew: python -m gateway.policy.json_schema > policies/tailgate.schema.json"
    )


def test_every_field_of_the_policy_schema_is_described() -> None:
    schema = orjson.loads(json_schema())
    sections = [schema, *schema["$defs"].values()]
    for section in sections:
        for name, field in section.get("properties", {}).items():
            # A field without a description of its own refers to its section's.
            target = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            assert field.get("description", target.get("description")), f"{section['title']}.{name}"


@pytest.mark.long
def test_every_default_in_the_schema_can_be_written_in_a_policy() -> None:
    """An editor offers defaults, so they have the form of a policy file: 2s, not 2.0."""
    schema = orjson.loads(json_schema())
    checked = 0
    for section in schema["$defs"].values():
        for name, field in section.get("properties", {}).items():
            if "default" in field:
                jsonschema.validate(field["default"], {**field, "$defs": schema["$defs"]})
                assert not isinstance(field["default"], float) or name in ("weight", "quantile", "slowdown")
                checked += 1
    assert checked > 30


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("slots: 8", "slot: 8"),
        ("slots: 8", "slots: many"),
        ("slots: 8", "connect_timeout: 2"),
        ("engine: vllm", "engine: vlm"),
        ("http://a:1", "http://a:1/v1"),
        ("p99: 2s", "p98: 2s"),
        ("  tier: free", "  teir: free"),
        ("max_tokens: {default: 10, limit: 20}", "admission: {exploration: 0}"),
        ("max_tokens: {default: 10, limit: 20}", "admission: {exploration: 0.0%}"),
    ],
)
def test_policy_schema_refuses_what_the_check_command_refuses(old: str, new: str) -> None:
    assert accepted(SAMPLE)
    assert not accepted(SAMPLE.replace(old, new))


@pytest.mark.parametrize("share", ["10%", "0.05%", "0.01", "100%", "'${SHARE}'"])
def test_policy_schema_accepts_a_share_above_zero(share: str) -> None:
    assert accepted(SAMPLE.replace("max_tokens: {default: 10, limit: 20}", f"admission: {{exploration: {share}}}"))


def test_policy_schema_accepts_variables() -> None:
    text = SAMPLE.replace("engine: vllm", "engine: ${ENGINE:-vllm}").replace("http://a:1", "'http://${HOST}:1'")
    assert accepted(text.replace("p99: 2s", "p99: '${P99}'").replace("slots: 8", "api_key: ${KEY}"))
