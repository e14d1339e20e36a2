"""`tailgate load certify` and `find` against emulated replicas."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from loadtests.__main__ import app
from loadtests.commands import verdicts

POLICY = """
apiVersion: tailgate/v1
kind: Policy
pools:
  main: {{replicas: [http://127.0.0.1:1], slots: 64}}
models:
  m: {{pools: [main]}}
tiers:
  standard: {{slo: {{ttft: {{p90: {ttft}}}}}}}
defaults: {{tier: standard}}
"""


@pytest.fixture(scope="module")
def replica() -> Iterator[str]:
    command = [sys.executable, "-m", "loadtests.emulator", "--port", "0", "--model", "m", "--time-scale", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0]
        process.terminate()


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second would make each verdict take more than ten."""
    monkeypatch.setattr("loadtests.verdict.step.MIN_STRETCH_S", 0.1)
    monkeypatch.setattr(verdicts, "APART_S", 0.05)


def run(command: str, replica: str, folder: Path, ttft: str, *options: str) -> Result:
    policy = folder / "policy.yaml"
    policy.write_text(POLICY.format(ttft=ttft))
    common = ("--target", replica, "--policy", str(policy), "--workload", "prompt_tokens=20,output_tokens=3")
    return CliRunner().invoke(app, [command, *common, "--goodput", "0.8", *options])


@pytest.mark.long
def test_certificate_of_a_kept_and_of_a_broken_promise(replica: str, tmp_path: Path) -> None:
    files = ("--junit", str(tmp_path / "j.xml"), "--markdown", str(tmp_path / "m.md"), "--out", str(tmp_path / "kept"))
    kept = run("certify", replica, tmp_path, "20s", "--at", "60", "--budget", "20", *files)
    assert kept.exit_code in (0, 3), kept.output  # 3: this machine was busy
    document = json.loads((tmp_path / "kept" / "certificate.json").read_text())
    assert [one["verdict"] for one in document["promises"]] == ["pass", "pass"]
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "0", "0")
    assert "| standard: p90 TTFT ≤ 20 s | " in (tmp_path / "m.md").read_text()

    broken = run("certify", replica, tmp_path, "1ms", "--at", "60", "--budget", "20", "--json", *files[:2])
    assert broken.exit_code in (1, 3), broken.output
    document = json.loads(broken.stdout)
    assert document["verdict"] == "fail"
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert int(suite.get("failures") or 0) >= 1

    baseline = tmp_path / "before"
    baseline.mkdir()
    better = json.loads((tmp_path / "kept" / "certificate.json").read_text())
    better["promises"][1]["low"] = 1.5  # no test can keep so much
    (baseline / "certificate.json").write_text(json.dumps(better))
    worse = run("certify", replica, tmp_path, "20s", "--at", "60", "--budget", "20", "--baseline", str(baseline))
    assert worse.exit_code in (1, 3), worse.output
    assert "less than before standard: goodput" in worse.stdout


@contextmanager
def half_good(reads: int) -> Iterator[str]:
    """An admin port with metrics by which half of the requests are good. It answers so many times, and then fails."""
    left = iter(range(reads))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = next(left, None)
            offered = 0 if number is None else 100 * (1 + number)
            body = f'tailgate_offered_requests_total{{tier="standard"}} {offered}\n'
            body += f'tailgate_good_requests_total{{tier="standard"}} {offered / 2}\n'
            self.send_response(500 if number is None else 200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.long
def test_certificate_tells_that_the_gateway_counts_less_good_requests_than_clients_saw(
    replica: str, tmp_path: Path
) -> None:
    options = ("--at", "60", "--budget", "20", "--markdown", str(tmp_path / "m.md"))
    with half_good(3) as admin:
        found = run("certify", replica, tmp_path, "20s", *options, "--admin", admin, "--json")
    (goodput,) = (one for one in json.loads(found.stdout)["promises"] if one["gateway_kept"] is not None)
    assert (goodput["gateway_kept"], goodput["gateway_differs"]) == (0.5, True)
    assert "the gateway counts 50%, beyond the interval" in (tmp_path / "m.md").read_text()
    with half_good(2) as admin:
        found = run("certify", replica, tmp_path, "20s", *options, "--admin", admin)
    assert found.exit_code in (0, 3), found.output
    assert "the verdicts stand without it" in " ".join(found.stderr.split())


@pytest.mark.long
def test_short_budget_leaves_promises_undecided_and_progress_is_lines_without_a_terminal(
    replica: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "LINE_EVERY_S", 2.0)
    found = run("certify", replica, tmp_path, "20s", "--at", "0.5", "--budget", "10", "--json")
    assert found.exit_code in (3, 4), found.output
    assert {one["verdict"] for one in json.loads(found.stdout)["promises"]} == {"undecided"}
    assert re.search(r"0\.5/s, \d of 10 s, before the push; ", found.stderr), found.stderr


def test_find_reports_a_target_that_keeps_nothing(replica: str, tmp_path: Path) -> None:
    options = ("--from", "40", "--each", "10", "--budget", "10", "--cool", "0", "--out", str(tmp_path / "found"))
    found = run("find", replica, tmp_path, "1ms", *options)
    assert found.exit_code in (1, 3), found.output
    document = json.loads((tmp_path / "found" / "find.json").read_text())
    assert document["rate_per_s"] == 0.0
    assert document["steps"][0]["verdict"] == "fail"
    assert (tmp_path / "found" / "find.svg").exists()


@pytest.mark.long
def test_find_goes_up_while_promises_are_kept_and_tells_what_the_gateway_counts(replica: str, tmp_path: Path) -> None:
    options = ("--from", "20", "--up-to", "40", "--each", "20", "--budget", "60", "--cool", "0")
    with half_good(10) as admin:
        found = run("find", replica, tmp_path, "20s", *options, "--admin", admin, "--out", str(tmp_path / "found"))
    assert found.exit_code in (3, 4), found.output  # 4: --up-to ended the search
    document = json.loads((tmp_path / "found" / "find.json").read_text())
    assert document["rate_per_s"] >= 20.0
    assert all(step["kept"] for step in document["steps"])
    assert "clients see another service than the gateway" in " ".join(found.stderr.split())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--prompts", "none.txt"), "name the traffic once"),
        (("--mix", "gold=100%"), "gold"),
        (("--baseline", "nowhere"), "--baseline nowhere: has no certificate.json"),
    ],
)
def test_wrong_option_of_certify_is_refused_before_anything_is_sent(
    options: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    found = run("certify", "http://127.0.0.1:1", tmp_path, "1s", "--at", "5", *options)
    assert found.exit_code == 2
    assert told in found.stderr
