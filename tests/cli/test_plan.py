"""`tailgate plan`: its output and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_cli import run

ASKED = ("plan", "--rate", "9000", "--latency", "0.12", "--slots", "40", "--utilization", "0.7", "--spare", "1")
PRICED = (*ASKED, "--price", "3", "--output-tokens", "200", "--availability", "0.999")


def answered(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_json_of_a_plan_has_its_figures() -> None:
    found = answered(*PRICED)
    assert found["replicas"] == 40
    assert found["replicas_needed"] == 39
    assert found["in_flight"] == pytest.approx(1080)
    assert found["cost"]["per_hour"] == 120
    assert found["availability"]["all_up"] == pytest.approx(0.999**40)
    assert [row["replicas"] for row in found["curve"]] == sorted(row["replicas"] for row in found["curve"])


def test_json_plan_of_a_full_fleet_has_null_waits() -> None:
    found = answered("plan", "--rate", "12000", "--latency", "0.04", "--slots", "32")
    assert found["replicas"] == 15
    assert found["planned"]["waits"] is None


def test_plan_prints_its_figures() -> None:
    done = run(*PRICED)
    assert done.exit_code == 0
    for told in ("1,080 requests", "39 replicas", "40: 39 and 1 spare; 67.5% busy", "69.2% busy", "120.00 per hour"):
        assert told in done.stdout
    for told in ("3.704 per million requests", "0.01852 per million output tokens", "96.077% of the time (0.999^40)"):
        assert told in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if "%" in line and line[:1].isdigit()]
    assert [rows[0][0], rows[-1][0]] == ["27", "54"]
    assert "█" in done.stdout


def test_plan_of_one_replica_says_none_is_left_if_one_is_lost() -> None:
    done = run("plan", "--rate", "1", "--latency", "0.5", "--slots", "1")
    assert "1 replica: 0.5 / (1 slot)" in done.stdout
    assert "nothing is left; 2 are at 100% or less with one lost" in done.stdout


def test_plan_says_how_many_replicas_keep_the_wait_if_one_is_lost() -> None:
    done = run("plan", "--rate", "9000", "--latency", "0.12", "--slots", "40", "--p99-wait", "0.05")
    assert "waits grow for ever; 29 are at 100% or less and wait at most 50 ms (p99) with one lost" in done.stdout


def test_plan_options_for_times_and_rates_take_units() -> None:
    assert run("plan", "--rate", "540k/min", "--latency", "120ms", "--slots", "40", "--p99-wait", "50ms").stdout == (
        run("plan", "--rate", "9000", "--latency", "0.12", "--slots", "40", "--p99-wait", "0.05").stdout
    )


def test_plan_shows_availability_with_at_most_six_nines() -> None:
    assert "enough up   over 99.9999% of the time; at least one: 100%" in run(*PRICED).stdout


def test_a_plan_for_a_full_fleet_advises_a_lower_utilisation() -> None:
    done = run("plan", "--rate", "9000", "--per-replica", "450")
    assert (
        "20: 100.0% busy, so that waits grow for ever: leave room for chance, as with --utilization 0.7" in done.stdout
    )


def test_plan_without_slots_says_what_is_missing() -> None:
    done = run("plan", "--rate", "5000", "--latency", "0.0468")
    assert done.exit_code == 0
    assert "234 requests" in done.stdout
    assert "--slots, or --per-replica" in done.stdout


def test_bad_plan_option_goes_to_stderr_and_exits_with_2() -> None:
    done = run("plan", "--rate", "-3", "--latency", "1")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "--rate is -3: give requests per second, such as 9000" in done.stderr


# ---- simulated


SPEC = """\
apiVersion: tailgate/v1
kind: Workload
rate: 250/s
duration: 2s
prompt_tokens: 200
output_tokens: 40
tiers: {default: {share: 100%}}
"""
ONE_POOL = """\
apiVersion: tailgate/v1
models: {default: {pools: [p]}}
pools: {p: {replicas: [{name: r1, url: "http://127.0.0.1:1"}], slots: 2}}
tiers: {default: {slo: {e2e: {p99: 90ms}}}}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    policy, workload = tmp_path / "policy.yaml", tmp_path / "workload.yaml"
    policy.write_text(ONE_POOL)
    workload.write_text(SPEC)
    return "plan", "--policy", str(policy), "--workload", str(workload), "--fleet", "test", "--warmup", "0.5"


def test_plan_simulates_a_policy_with_its_traffic(files: tuple[str, ...]) -> None:
    found = answered(*files, "--target", "0.98", "--seeds", "2", "--spare", "1", "--price", "3")
    assert found["replicas"] == found["replicas_needed"] + 1 == 3
    assert found["needed"]["goodput"]["value"] >= 0.98
    assert found["needed"]["goodput"]["n"] == 2
    assert found["limit"]["rate_per_s"] >= found["needed"]["rate_per_s"] == pytest.approx(250, rel=0.1)
    assert found["replicas_one_lost"] == {"p": 3}
    assert found["cost"]["per_hour"] == 9


def test_a_plan_can_be_made_from_a_trace() -> None:
    asked = ("plan", "--policy", "policies/chat-with-tiers.yaml", "--workload", "loadtests/traces/small.jsonl")
    found = answered(*asked, "--target", "0.95", "--seeds", "1")
    assert found["replicas"] == found["needed"]["replicas"]["chat"]
    assert found["needed"]["rate_per_s"] == pytest.approx(229 / 60, rel=0.15)
    # Played at two and three times its speed, and repeated two and three times. Conversations find their prompts in
    # caches.
    assert 12 < found["limit"]["rate_per_s"] < 20


def test_plan_works_for_a_trace_that_is_shorter_than_the_warm_up_when_sped_up(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    slow = tmp_path / "slow.jsonl"
    slow.write_text("".join(f'{{"at": {2 * n}, "prompt_tokens": 200, "output_tokens": 40}}\n' for n in range(8)))
    asked = (*files[:3], "--workload", str(slow), "--fleet", "test", "--warmup", "10", "--target", "0.9")
    found = answered(*asked, "--seeds", "1")
    assert found["replicas"] == 1
    assert found["limit"]["rate_per_s"] > 16 / 10 * found["needed"]["rate_per_s"]


@pytest.mark.long
@pytest.mark.long
def test_plan_computes_cost_per_million_output_tokens_from_simulated_answers(files: tuple[str, ...]) -> None:
    searched = (*files, "--target", "0.98", "--seeds", "1", "--price", "3")
    found = answered(*searched)
    assert found["needed"]["output_tokens"] == 40
    cost = found["cost"]
    assert cost["per_million_output_tokens"] == pytest.approx(cost["per_million_requests"] / 40)
    cost = answered(*searched, "--output-tokens", "20")["cost"]
    assert cost["per_million_output_tokens"] == pytest.approx(cost["per_million_requests"] / 20)
    assert "per million output tokens" in run(*searched).stdout


def test_plan_of_a_workload_in_one_line_is_that_of_the_same_file(files: tuple[str, ...]) -> None:
    searched = "--target", "0.98", "--seeds", "1", "--rate", "250", "--duration", "2"
    line = (*files[:3], "--workload", "prompt_tokens=200,output_tokens=40", *files[5:])
    found = answered(*line, *searched)
    assert found["replicas"] > 1
    assert found["tried"] == answered(*files, *searched)["tried"]


def test_plan_with_a_price_for_each_pool_adds_up_their_costs() -> None:
    asked = "--workload", "prompt_tokens=200,output_tokens=20", "--rate", "10", "--duration", "12", "--seeds", "1"
    searched = ("plan", "--policy", "policies/default.yaml", *asked)
    found = answered(*searched, "--price", "short=3,long=8")
    replicas = found["needed"]["replicas"]
    assert found["cost"]["per_hour_by_pool"] == {"short": 3 * replicas["short"], "long": 8 * replicas["long"]}
    assert found["cost"]["per_hour"] == 3 * replicas["short"] + 8 * replicas["long"]
    assert "per hour (short 3.00, long 8.00);" in run(*searched, "--price", "short=3,long=8").stdout


def test_knee_search_that_reaches_its_highest_rate_hints_at_tenant_limits(files: tuple[str, ...]) -> None:
    policy = Path(files[2])
    policy.write_text(ONE_POOL.replace("{slo:", "{limits: {concurrency: 2}, slo:"))
    done = run(*files, "--seeds", "1", "--rate", "50")
    assert done.exit_code == 0, done.output
    assert "the highest rate that was tried: do the limits of tenants bind?" in done.stdout


def test_knee_search_is_printed_for_people(files: tuple[str, ...]) -> None:
    done = run(*files, "--target", "0.98", "--seeds", "1", "--rate", "100")
    assert done.exit_code == 0, done.output
    assert "replicas    1: goodput 1.000 at" in done.stdout
    assert "of the slots" in done.stdout
    assert "Every fleet that was tried (1 seed: no intervals; bars from 0.8 to 1)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fleet", "r1=test"), "--fleet names r1: name pools"),
        (("--target", "99"), "--target is 99: it is a share above 0 and at most 1, 0.99 for 99% of the requests"),
        (("--rate", "nan"), "nan is not a finite rate"),
        (
            ("--price", "3x"),
            "--price: '3x' is not a number: give the price of a replica per hour, such as 3, or by pool",
        ),
        (("--price", "p=3,q=4"), "--price: pools and prices do not match in q: give p=3"),
        (("--price", "p=3,p=4"), "--price p=3,p=4: a pool is there twice"),
        (("--price", "p=-1"), "--price is -1: give the price of a replica per hour"),
        (("--price", "p=3", "--spare", "1"), "--spare has no pool, so no price"),
        (("--latency", "1"), "is of no use with --policy"),
    ],
)
def test_bad_search_option_exits_with_2(files: tuple[str, ...], arguments: tuple[str, ...], message: str) -> None:
    done = run(*files, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_plan_refuses_traffic_of_a_tier_that_the_policy_lacks(files: tuple[str, ...]) -> None:
    Path(files[4]).write_text(SPEC.replace("default: {share", "gold: {share"))
    done = run(*files)
    assert done.exit_code == 2
    assert "the policy lacks what the workload asks for: tier gold (it has default)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("--rate", "1e-300", "--latency", "1e-300", "--slots", "1"), "--rate, --latency and --slots"),
        (("--rate", "1e-200", "--latency", "1", "--slots", "2"), "--rate, --latency and --slots"),
        (("--rate", "1e-200", "--per-replica", "1e200"), "--rate and --per-replica"),
    ],
)
def test_plan_for_almost_no_load_names_the_options_to_check(arguments: tuple[str, ...], options: str) -> None:
    done = run("plan", *arguments)
    assert done.exit_code == 2
    assert "replicas busy: look at" in done.stderr
    assert f"{options} again" in done.stderr


def test_plan_for_a_tiny_load_is_one_replica() -> None:
    found = answered("plan", "--rate", "1e-5", "--latency", "1e-3", "--slots", "1000", "--p99-wait", "1")
    assert found["replicas"] == 1
    assert found["planned"]["utilization"] == pytest.approx(1e-11)
    done = run("plan", "--rate", "1e-200", "--per-replica", "1e-200", "--utilization", "1e-200")
    assert (done.exit_code, "would take 1e+200 replicas" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan",), "with --rate, or the traffic with --policy and --workload"),
        (("plan", "--rate", "5", "--latency", "1", "--seeds", "2"), "is for simulations: give --policy, too"),
        (("plan", "--policy", "policies/default.yaml"), "name the traffic with --workload"),
    ],
)
def test_incomplete_plan_options_exit_with_2(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize("command", [("plan",), ("simulate", "--seeds", "1")])
def test_simulation_of_far_too_many_requests_is_refused_before_it_begins(command: tuple[str, ...]) -> None:
    policy = str(Path(__file__).parents[2] / "policies" / "chat-with-tiers.yaml")
    done = run(*command, "--policy", policy, "--workload", "chat", "--rate", "1e9", "--duration", "60")
    assert done.exit_code == 2
    said = "a run would simulate 6e+10 requests (1e+09 per second for 60 s), and the most is 1e+08: lower --rate or"
    assert said in " ".join(done.stderr.split())
