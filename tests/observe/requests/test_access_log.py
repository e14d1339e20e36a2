"""The access log: one JSON line a request, kept through rotation, renamed by others, dropped if the disk is full."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core.history import EarlyRefusal
from gateway.core.results import Reason
from gateway.observe.requests.access_log import AccessLog, LineFile
from gateway.observe.requests.document import document_of
from gateway.observe.requests.row import RequestRow
from gateway.settings import SettingError
from loadtests.emulator import Emulator
from tests.serving import gateways

from .test_ring import ended

ROOT = Path(__file__).resolve().parents[3]
POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}}}
pools: {{main: {{replicas: [{{name: r1, url: "{}"}}]}}}}
tiers: {{only: {{}}}}
"""


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_request_of_a_gateway_is_one_line_and_none_quotes_it(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    async with Emulator(replicas=1) as emulator:
        async with gateways() as start:
            gateway = await start(POLICY.format(*emulator.urls), access_log=path)
            async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as client:
                ask = {"model": "emulated", "prompt": "a secret question", "max_tokens": 2}
                for number in range(70):
                    await client.post("/v1/completions", json=ask, headers={"x-request-id": f"good-{number}"})
                await client.post("/v1/completions", json={**ask, "model": "none"}, headers={"x-request-id": "bad"})
        lines = lines_of(path)
    assert sorted(line["request_id"] for line in lines) == sorted(["bad", *(f"good-{n}" for n in range(70))])
    assert {line["outcome"] for line in lines} == {"ok", "early"}
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_file_that_is_full_goes_on_in_another_and_the_oldest_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LineFile(path, max_bytes=10, files=3)
    for letter in "abcd":
        file.write(f"{letter * 8}\n".encode())
    file.close()
    assert {each.name: each.read_text()[0] for each in tmp_path.iterdir()} == {"log": "d", "log.1": "c", "log.2": "b"}


def test_single_file_that_is_full_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LineFile(path, max_bytes=10, files=1)
    for letter in "ab":
        file.write(f"{letter * 8}\n".encode())
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
    assert path.read_text() == "bbbbbbbb\n"


def test_file_that_another_program_renamed_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LineFile(path, max_bytes=1000, files=3)
    file.write(b"one\n")
    path.rename(tmp_path / "rotated")
    file.write(b"two\n")
    file.close()
    assert (path.read_text(), (tmp_path / "rotated").read_text()) == ("two\n", "one\n")


async def test_lines_that_a_full_disk_does_not_take_are_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = AccessLog(Path("/dev/full"), lambda: 0.0, max_bytes=2**20, files=2)
    for number in range(3):
        log.write(RequestRow(ended(f"a-{number}")))
        log.flush()
    await log.aclose()
    assert log.dropped == 3
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "the access log /dev/full cannot be written" in told.getMessage()


def test_access_log_in_a_missing_folder_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="give another by --access-log"):
        AccessLog(tmp_path / "none" / "log", lambda: 0.0, max_bytes=2**20, files=2)


def test_reference_names_every_field_of_a_record() -> None:
    page = (ROOT / "docs" / "reference" / "records.md").read_text()
    named = {name for row in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(document_of(RequestRow(ended("a")), 0.0))
    early = document_of(EarlyRefusal(1.0, Reason.UNAUTHORIZED.value, "b"), 0.0)
    assert set(early) - named == {"param"}


async def test_records_reach_the_file_before_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = AccessLog(path, lambda: 0.0, max_bytes=2**20, files=2)
    running = asyncio.create_task(log.run())
    for number in range(200):
        log.write(RequestRow(ended(f"a-{number}")))
    running.cancel()
    await log.aclose()
    assert [line["request_id"] for line in lines_of(path)] == [f"a-{number}" for number in range(200)]
