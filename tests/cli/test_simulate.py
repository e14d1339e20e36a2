"""`tailgate simulate`: its output and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.sim.baselines.baselines import BASELINES
from gateway.sim.workload.load import shipped
from tests.test_cli import run

POLICY = """\
apiVersion: tailgate/v1
models: {default: {pools: [p]}}
pools:
  p: {replicas: [{name: r1, url: "http://127.0.0.1:1"}, {name: r2, url: "http://127.0.0.1:2"}], slots: SLOTS}
tiers:
  gold: {priority: 0, weight: 4, slo: {ttft: {p99: 1s}}}
  bulk: {priority: 1, weight: 1, slo: {ttft: {p99: 3s}}}
defaults: {tier: bulk}
"""
TRACE = "".join(
    json.dumps(
        {
            "at": 0.05 * i,
            "tier": "bulk" if i % 3 else "gold",
            "tenant": "acme",
            "model": "default",
            "prompt_tokens": 200 + 37 * (i % 29),
            "output_tokens": 20 + 11 * (i % 17),
        }
    )
    + "\n"
    for i in range(400)
)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "wide.yaml"
    path.write_text(POLICY.replace("SLOTS", "64"))
    return path


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    path = tmp_path / "narrow.yaml"
    path.write_text(POLICY.replace("SLOTS", "2"))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    return path


def simulate(*arguments: str | Path) -> Any:
    result = run("simulate", *arguments, "--warmup", "2", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_policies_and_baselines_are_compared_on_the_same_arrivals(policy: Path, narrow: Path, trace: Path) -> None:
    found = simulate(
        "--policy", policy, "--policy", narrow, "--workload", trace, "--seeds", "2", "--baseline", "static-cap:slots=8"
    )
    assert [row["policy"] for row in found["policies"]] == ["wide", "narrow", "static-cap:slots=8"]
    assert found["seeds"] == [1, 2]
    assert len(found["runs"]) == 6
    assert {row["offered"] for row in found["runs"]} == {360}
    wide, narrow_row = (row["figures"]["goodput"]["value"] for row in found["policies"][:2])
    assert wide > 0.95 > narrow_row
    (row,) = (r for r in found["differences"] if r["against"] == "narrow" and r["figure"] == "goodput")
    assert row["difference"]["value"] == pytest.approx(wide - narrow_row)
    assert found["runs"][0]["tiers"]["gold"]["ttft"]["p99"] > 0.02


def test_simulate_prints_tables(policy: Path, trace: Path) -> None:
    result = run("simulate", "--policy", policy, "--workload", trace, "--seeds", "1", "--baseline", "llm-d")
    assert result.exit_code == 0
    titles = [line for line in result.stdout.splitlines() if line and "─" not in line and line[0].isupper()]
    assert [title.split()[0] for title in titles] == ["Goodput", "Attainment", "Latencies", "Waits,", "Not"]
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith(("wide", "llm-d"))]
    assert ["wide", "gold"] in [row[:2] for row in rows]
    assert "…" not in result.stdout


def test_simulate_takes_the_fleet_faults_and_patience_of_its_options(policy: Path, trace: Path) -> None:
    plain = simulate("--policy", policy, "--workload", trace, "--seeds", "1")
    slow = simulate("--policy", policy, "--workload", trace, "--seeds", "1", "--fleet", "p=slow", "--patience", "2")
    dead = simulate(
        "--policy", policy, "--workload", trace, "--seeds", "1", "--fault", "r1@5=dead", "--fault", "r1@9=recover"
    )
    tpot = [found["runs"][0]["tiers"]["bulk"]["tpot"]["p50"] for found in (plain, slow)]
    assert tpot[1] > 3 * tpot[0]
    assert slow["options"]["patience_s"] == 2.0
    assert plain["options"]["patience_s"] is None
    misses = {reason for tier in dead["runs"][0]["tiers"].values() for reason in tier["misses"]}
    assert "upstream-truncated" in misses


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "TRACE", "--fleet", "huge"], "huge is not an engine profile; known: default, short"),
        (
            ["--workload", "TRACE", "--fleet", "q=slow"],
            "--fleet: q is neither a pool nor a replica of the policy; pools: p",
        ),
        (["--workload", "TRACE", "--fault", "r1@x=slow:2"], "a fault is written REPLICA@SECONDS=HARM"),
        (["--workload", "TRACE", "--fault", "r1@1=slow"], "a fault is written REPLICA@SECONDS=HARM"),
        (["--workload", "TRACE", "--fault", "r9@1=down"], "--fault names r9, but the replicas are r1, r2"),
        (["--workload", "TRACE", "--baseline", "cap"], "cap is not a baseline; known: round-robin"),
        (
            ["--workload", "TRACE", "--warmup", "1000"],
            "--warmup is 1000 s, requests arrive for 20 s",
        ),
        (["--workload", "TRACE", "--duration", "5"], "after the warm-up: --warmup is 10 s, --duration is 5 s"),
        (["--workload", "no-such-thing"], "no-such-thing: is neither a file nor a shipped workload"),
        (
            ["--workload", "step", "--mix", "gold=100%"],
            "--mix is for traces and lines: the requests of step have tiers already",
        ),
        (["--workload", "TRACE", "--mix", "gold"], "--mix gold: a mix is written TIER=SHARE,..."),
        (["--workload", "TRACE", "--mix", "gold=0%,bulk=9%"], "--mix gold=0%: a mix is written TIER=SHARE,..."),
        (["--workload", "TRACE", "--mix", "gold=20%, bulk=80"], "--mix bulk=80: 80 lacks its %: a mix is written"),
        (["--workload", "TRACE", "--mix", "gold=90%"], "--mix gold=90%: the shares add up to 90%: make it 100%"),
    ],
)
def test_bad_simulate_option_exits_with_2(policy: Path, trace: Path, arguments: list[str], said: str) -> None:
    given = [str(trace) if argument == "TRACE" else argument for argument in arguments]
    result = run("simulate", "--policy", policy, *given)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_trace_without_tiers_gets_the_default_tier_or_those_of_mix(policy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    rows = "".join(f"2024-05-10 00:00:{i // 10:02d}.{i % 10}00000,{300 + i},{20 + i % 7}\n" for i in range(300))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    plain = simulate("--policy", policy, "--workload", trace, "--seeds", "1")
    mixed = simulate("--policy", policy, "--workload", trace, "--seeds", "1", "--mix", "gold=50%,bulk=50%")
    counts = [{name: row["offered"] for name, row in found["runs"][0]["tiers"].items()} for found in (plain, mixed)]
    assert counts[0] == {"gold": 0, "bulk": 280}
    assert min(counts[1].values()) > 100


def test_simulate_leaves_out_trace_rows_of_0_tokens_and_says_so(policy: Path, trace: Path) -> None:
    failed = json.dumps({"at": 21, "prompt_tokens": 9, "output_tokens": 0}) + "\n"
    beyond = json.dumps({"at": 99, "prompt_tokens": 0, "output_tokens": 9}) + "\n"
    trace.write_text(TRACE + failed + failed + beyond)
    whole = run("simulate", "--policy", policy, "--workload", trace, "--seeds", "2", "--json")
    assert json.loads(whole.stdout)["runs"][0]["arrived"] == 400
    said = "left out: 3 rows of 0 tokens (failed when they were recorded; lines 401, 402, 403)"
    assert whole.stderr == f"{trace}: {said}\n"
    clean = run("simulate", "--policy", policy, "--workload", trace, "--seeds", "1", "--duration", "15", "--json")
    assert clean.stderr == ""


def test_the_model_option_of_simulate_names_the_model_of_every_request(policy: Path, trace: Path) -> None:
    policy.write_text(POLICY.replace("SLOTS", "64").replace("{default: {pools", "{llama: {pools"))
    wrong = run("simulate", "--policy", policy, "--workload", trace, "--seeds", "1")
    assert "wide: the policy lacks what the workload asks for: model default (it has llama)" in wrong.stderr
    found = simulate("--policy", policy, "--workload", trace, "--seeds", "1", "--model", "llama")
    assert found["runs"][0]["goodput"] > 0.95


def test_simulate_names_all_tiers_and_models_that_the_policy_lacks(policy: Path, trace: Path) -> None:
    late = json.dumps({"at": 21, "tier": "lead", "model": "llama", "prompt_tokens": 1, "output_tokens": 1}) + "\n"
    trace.write_text(TRACE.replace('"gold"', '"silver"') + late + late.replace("21", "90").replace("lead", "tin"))
    result = run("simulate", "--policy", policy, "--workload", trace, "--duration", "60")
    assert result.exit_code == 2
    told = "tier silver, lead (it has gold, bulk); model llama (it has default)"
    assert result.stderr == f"wide: the policy lacks what the workload asks for: {told}\n"


def test_simulate_names_the_line_of_a_broken_policy(policy: Path, trace: Path) -> None:
    policy.write_text(POLICY.replace("SLOTS", "many"))
    result = run("simulate", "--policy", policy, "--workload", trace)
    assert result.exit_code == 2
    assert f"{policy}:4: pools.p.slots" in result.stderr


def test_simulation_page_documents_every_baseline_profile_and_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "simulation.md").read_text("utf-8")
    for name in BASELINES:
        assert f"| `{name}` |" in page
    for name in shipped():
        assert f"| `{name}` |" in page
    help_text = run("simulate", "--help").stdout
    options = (
        "--policy",
        "--workload",
        "--rate",
        "--duration",
        "--fleet",
        "--fault",
        "--patience",
        "--retries",
        "--jobs",
    )
    for option in options:
        assert option in help_text
        assert f"`{option}" in page


def test_the_noise_option_of_simulate_is_reported_and_changes_the_run(policy: Path, trace: Path) -> None:
    asked = ("simulate", "--policy", policy, "--workload", trace, "--seeds", "1", "--warmup", "1", "--json")
    plain, noisy = (json.loads(run(*asked, *more).stdout) for more in ((), ("--noise", "0.6")))
    assert (plain["options"]["noise"], noisy["options"]["noise"]) == (0.0, 0.6)
    assert plain["runs"][0]["tiers"]["bulk"]["ttft"] != noisy["runs"][0]["tiers"]["bulk"]["ttft"]
    assert "--noise" in run("simulate", "--policy", policy, "--workload", trace, "--noise", "-1").output


@pytest.mark.parametrize("workload", ["code", "conversations", "day", "step"])
def test_workload_of_the_tier_default_is_that_of_the_default_tier_of_a_policy(workload: str) -> None:
    asked = ("simulate", "--policy", "policies/default.yaml", "--workload", workload, "--rate", "2", "--seeds", "1")
    done = run(*asked, "--duration", "12", "--warmup", "0", "--json")
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["runs"][0]["tiers"]) == ["standard"]


def test_policy_whose_replicas_are_only_found_cannot_be_simulated(tmp_path: Path, trace: Path) -> None:
    path = tmp_path / "found.yaml"
    pool = "{discover: {file: replicas.json}}"
    path.write_text(POLICY.replace(POLICY[POLICY.index("{replicas:") : POLICY.index("\ntiers")], pool))
    result = run("simulate", "--policy", str(path), "--trace", str(trace))
    assert result.exit_code == 2
    assert "pools.p: its replicas are found while the gateway runs" in " ".join(result.output.split())
