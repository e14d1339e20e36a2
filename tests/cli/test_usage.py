"""`tailgate usage`: of a running gateway, and of its file after it has ended."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from gateway.app import Gateway
from gateway.cli.app import app
from gateway.observe.usage.database import UsageDatabase
from gateway.observe.usage.metering import Sums
from gateway.policy import load
from gateway.settings import Settings
from loadtests.emulator import Emulator
from tests.serving import gateways
from tests.stores import needs_store, real_store

POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools: {{main: {{replicas: [{{name: r1, url: "{}"}}]}}}}
tiers: {{only: {{}}}}
prices:
  currency: EUR
  models: {{emulated: {{prompt: 1000000, cached: 0, output: 2000000}}}}
  replica_hours: {{main: 3600}}
"""
FOCUS_MANDATORY = (
    "BilledCost BillingAccountId BillingAccountName BillingCurrency BillingPeriodEnd BillingPeriodStart ChargeCategory "
    "ChargeClass ChargeDescription ChargePeriodEnd ChargePeriodStart ContractedCost EffectiveCost InvoiceIssuerName "
    "ListCost PricingQuantity PricingUnit ProviderName PublisherName ServiceCategory ServiceName"
)
"""The mandatory columns of FOCUS 1.0."""
ASK = {"model": "emulated", "prompt": "hello", "max_tokens": 3}


@needs_store
async def test_usage_of_any_gateway_has_the_requests_of_all_that_share_a_store(tmp_path: Path) -> None:
    async with real_store() as store, Emulator(replicas=1) as emulator, gateways() as start:
        policy = POLICY.format(*emulator.urls)
        gone, other = [await start(policy, usage=tmp_path / f"{name}.db", store=store.url) for name in "ab"]
        for gateway, count in ((gone, 1), (other, 2)):
            async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as client:
                for _ in range(count):
                    assert (await client.post("/v1/completions", json=ASK)).status_code == 200
        await gone.drain()
        found = await asyncio.to_thread(usage, "--json", "--admin", other.admin_url)
        shown = await asyncio.to_thread(usage, "--admin", other.admin_url)
        await store.kill()
        alone = await asyncio.to_thread(usage, "--admin", other.admin_url)
    told = json.loads(found.stdout)
    assert (told["total"]["requests"], told["total"]["output_tokens"], told["gateways"]) == (3, 9, 2)
    assert told["error"] is None
    assert "of 2 gateways" in shown.stdout
    assert "the latest sums of other gateways are missing" in alone.stdout
    result = usage("--json", "--db", str(tmp_path / "b.db"), "--since", "999999w")
    assert json.loads(result.stdout)["total"]["requests"] == 3


def usage(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["usage", *arguments], env={"COLUMNS": "300"})


async def test_usage_of_a_gateway_has_tokens_prices_and_the_cost_of_a_good_request(tmp_path: Path) -> None:
    db, policy = tmp_path / "usage.db", tmp_path / "policy.yaml"
    async with Emulator(replicas=1) as emulator:
        await asyncio.to_thread(policy.write_text, POLICY.format(*emulator.urls))
        settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, usage=db)
        async with (
            Gateway(settings, load(policy), policy) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=20) as client,
        ):
            for _ in range(2):
                assert (await client.post("/v1/completions", json=ASK)).status_code == 200
            streamed = await client.post("/v1/completions", json={**ASK, "stream": True})
            assert streamed.status_code == 200
            await client.post("/v1/completions", json={**ASK, "model": "none"})
            live = await asyncio.to_thread(usage, "--json", "--admin", gateway.admin_url)
            wrong = await asyncio.to_thread(usage, "--by", "colour", "--admin", gateway.admin_url)
            filtered = await client.get(f"{gateway.admin_url}/admin/usage?tenant=acme")
    assert (filtered.status_code, filtered.json()["detail"]) == (400, "tenant is unknown; known: by, since, until")
    assert live.exit_code == 0, live.output
    assert sum(row["requests"] for row in json.loads(live.stdout)["rows"]) == 4
    assert wrong.exit_code == 2
    assert "by: 'colour' is unknown; known: tenant, key," in wrong.stderr
    result = usage("--json", "--db", str(db), "--policy", str(policy), "--by", "tenant,model,day")
    found = json.loads(result.stdout)
    served, unread = sorted(found["rows"], key=lambda row: row["model"], reverse=True)
    assert (served["tenant"], served["model"], served["requests"], served["good"]) == ("anonymous", "emulated", 3, 3)
    assert served["output_tokens"] == 9
    cached = served["cached_tokens"] or 0
    assert served["cost"] == pytest.approx(served["prompt_tokens"] - cached + 2 * served["output_tokens"])
    assert (unread["model"], unread["requests"], unread["prompt_tokens"]) == ("", 1, 0)
    fleet = found["fleet"]
    assert fleet["cost"] == pytest.approx(fleet["replica_hours"] * 3600)
    assert fleet["cost_per_good_request"] == pytest.approx(fleet["cost"] / 3)

    table = usage("--db", str(db), "--policy", str(policy)).stdout.splitlines()
    heads = "tenant requests good refused prompt tokens cached tokens output tokens slot s cost"
    assert " ".join(table[0].split()) == heads
    assert table[-1].endswith("EUR for a million tokens of good requests")
    rows = list(csv.DictReader(usage("--csv", "--by", "tier", "--db", str(db)).stdout.splitlines()))
    assert [(row["tier"], row["requests"]) for row in rows] == [("only", "4")]
    focus = list(csv.DictReader(usage("--focus", "--db", str(db), "--policy", str(policy)).stdout.splitlines()))
    assert {row["BillingCurrency"] for row in focus} == {"EUR"}
    assert sum(float(row["BilledCost"]) for row in focus) == pytest.approx(served["cost"])
    tokens = served["prompt_tokens"] + served["output_tokens"]
    assert sum(int(row["PricingQuantity"]) for row in focus) == tokens
    assert all(row.keys() >= set(FOCUS_MANDATORY.split()) for row in focus)
    times = [value for row in focus for name, value in row.items() if "Period" in name]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT00:00:00Z", value) for value in times)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--policy", "policy.yaml"], "--policy: goes with --db"),
        (["--db", "a.db", "--admin", "http://127.0.0.1:1"], "--admin: is of no use with --db"),
        (["--focus", "--by", "tier"], "--by: is tenant,model,day with --focus"),
        (["--csv", "--json"], "'--csv' / '--json' / '--focus': give one of them"),
    ],
)
def test_option_of_usage_without_effect_is_refused(arguments: list[str], problem: str) -> None:
    result = usage(*arguments)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_model_without_a_price_has_no_cost_and_is_named(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format("http://127.0.0.1:9"))
    database = UsageDatabase(tmp_path / "a.db")
    hour = int(time.time() // 3600)
    used = {model: Sums(requests=1, prompt_tokens=10, output_tokens=1) for model in ("emulated", "an-adapter")}
    database.add({(hour, "acme", "", "only", model): sums for model, sums in used.items()}, {})
    database.close()
    files = ("--db", str(tmp_path / "a.db"), "--policy", str(policy))
    found = json.loads(usage("--by", "model", "--json", *files).stdout)
    assert {row["model"]: row["cost"] for row in found["rows"]} == {"emulated": 12.0, "an-adapter": None}
    assert (found["total"]["cost"], found["unpriced"]) == (12.0, ["an-adapter"])
    assert "without a price, and missing in the costs: an-adapter" in usage(*files).stdout
    focus = usage("--focus", *files)
    assert (focus.exit_code, focus.stdout) == (2, "")
    assert "focus: prices.models of the policy lacks an-adapter, and *" in focus.stderr
    policy.write_text(policy.read_text().replace("models: {emulated: {prompt", 'models: {"*": {prompt'))
    found = json.loads(usage("--by", "model", "--json", *files).stdout)
    assert (found["total"]["cost"], found["unpriced"]) == (24.0, [])


def test_usage_of_several_gateways_sums_requests_and_counts_the_time_of_their_replicas_once(tmp_path: Path) -> None:
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    hour = int(time.time()) // 3600
    for path, replica_s in zip(paths, (1800.0, 3600.0), strict=True):
        database = UsageDatabase(path)
        database.add({(hour, "acme", "", "only", "m"): Sums(requests=2, good=1)}, {(hour, "main"): replica_s})
        database.close()
    found = json.loads(usage("--json", "--db", str(paths[0]), "--db", str(paths[1]), "--db", str(paths[0])).stdout)
    assert (found["total"]["requests"], found["total"]["good"]) == (4, 2)
    assert found["fleet"]["replica_hours"] == pytest.approx(1.0)


def test_usage_of_a_missing_file_names_it_and_makes_none(tmp_path: Path) -> None:
    result = usage("--db", str(tmp_path / "none.db"))
    assert result.exit_code == 2
    assert "does not exist: give the file of `tailgate serve --usage`" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--since", "7"], "since: '7' is not a time: write 7d, 24h, 2w or a day, 2026-11-01"),
        (["--since", "2026-11-02", "--until", "2026-11-01"], "since: is not before `until`"),
    ],
)
def test_wrong_option_is_named(arguments: list[str], problem: str, tmp_path: Path) -> None:
    result = usage(*arguments, "--db", str(tmp_path / "none.db"))
    assert result.exit_code == 2
    assert problem in result.stderr
