"""`tailgate diff`, and the same lines where a running gateway reloads its policy."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from gateway.app import Gateway
from gateway.cli.app import app
from gateway.policy import load
from gateway.settings import Settings

OLD = """\
apiVersion: tailgate/v1
models: {llama: {pools: [main]}}
pools: {main: {replicas: [http://127.0.0.1:1]}}
tiers: {gold: {slo: {ttft: {p99: 1s}}}}
"""
LINE = "tiers.gold.slo.ttft.p99: 1s -> 800ms"
TOKEN = "a-token-for-the-admin-port"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(OLD.replace("1s", "800ms"))
    return path


def diff(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["diff", *map(str, arguments)], env={"COLUMNS": "300"})


def test_diff_prints_each_change_and_exits_with_1(old: Path, new: Path) -> None:
    result = diff(old, new)
    assert (result.exit_code, result.stdout) == (1, f"{LINE}\n")
    assert json.loads(diff(old, new, "--json").stdout) == {"changes": [LINE]}


def test_diff_of_equal_policies_prints_nothing_and_exits_with_0(old: Path) -> None:
    result = diff(old, old)
    assert (result.exit_code, result.stdout) == (0, "")


def test_diff_with_a_broken_policy_names_the_error_and_exits_with_2(old: Path, new: Path) -> None:
    new.write_text(OLD.replace("tiers", "teirs"))
    result = diff(old, new)
    assert result.exit_code == 2
    assert f"{new}:4: teirs: unknown field" in result.stderr


async def test_reload_tells_the_changes_in_the_log_and_at_the_admin_port(
    old: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, admin_token=SecretStr(TOKEN))
    async with (
        Gateway(settings, load(old), old) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        first = (await admin.get("/admin/policy")).json()
        assert (first["generation"], first["changes"], first["before"]) == (1, [], [])
        with caplog.at_level(logging.INFO, "tailgate"):
            for generation in range(11):
                text = f"{OLD.replace('1s', '800ms')}# {generation}"
                await asyncio.to_thread(old.write_text, text)
                await admin.post("/admin/reload", headers={"authorization": f"Bearer {TOKEN}"})
        told = (await admin.get("/admin/policy")).json()
    assert f"policy generation 2: {LINE}" in caplog.messages
    assert "policy generation 3 is in force: the file says the same as before" in caplog.messages
    assert len(told["before"]) == 9
    assert told["digest"] == load(old).digest
    assert all(one["at_unix_s"] <= told["at_unix_s"] for one in told["before"])
