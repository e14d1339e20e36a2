"""The commands of README.md and of the guides run as they are typed, and print the output that is shown."""

from __future__ import annotations

import gzip
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.policy import load
from loadtests.commands.asked import traffic_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
BLOCK = re.compile(r"^```sh\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
JOURNAL = ROOT / "tests" / "observe" / "journals" / "one-slow-replica.jsonl.gz"
DEADLINE_S = 600.0
NUMBER = re.compile(r"\d+(?:\.\d+)?")
TOLERANCE = 0.05
NOT_RUN = {
    "uvx tailgate demo": "needs a release; tests/test_install.py runs the demo of the wheel",
    "make run": "serves until Ctrl-C; the fixture runs the demo, tests/loadtests/test_demo.py this target",
    "make setup": "installs packages; tests/test_install.py installs the wheel",
    "make scenario NAME=": "plays for minutes; tests/loadtests/scenarios plays scenarios",
    ".venv/bin/tailgate load scenario": "plays for minutes; tests/loadtests/scenarios plays scenarios",
    ".venv/bin/pip install": "installs packages",
    "OTEL_EXPORTER_OTLP_ENDPOINT=": "serves until it is stopped; tests/observe/otlp exports to a receiver",
    ".venv/bin/tailgate usage": "needs a gateway that keeps usage; tests/cli/test_usage.py runs it with one",
    ".venv/bin/tailgate serve": "serves until it is stopped; tests/test_install.py runs it",
    ".venv/bin/tailgate load calibrate": "takes six minutes; tests/loadtests/calibrate fits engines",
    ".venv/bin/tailgate plan --policy policies/chat-with-tiers.yaml --workload chat --rate 40 --fleet engine.json": (
        "needs the profile that calibrate writes"
    ),
    ".venv/bin/tailgate load certify": "takes minutes; tests/loadtests/commands/test_verdicts.py runs it",
    "tailgate load run --target http://gateway:8080": "needs three machines; tests/loadtests/report merges shards",
    "tailgate load report one two three": "needs the shards; tests/loadtests/report merges some",
    ".venv/bin/tailgate load find": "takes half an hour; tests/loadtests/commands/test_verdicts.py runs it",
    "curl http://127.0.0.1:8080/v1/models": "needs a policy with keys; tests/test_docs.py runs it with one",
}
"""Commands that cannot run here, by their beginning, with the reason."""
LONG = (".venv/bin/tailgate plan --policy", ".venv/bin/tailgate simulate")
"""Commands that take more than some seconds, by their beginning: they run with the long tests."""
SHORTER = {"load run": "--duration 2 --allow-late", "load report": "--allow-late", "load compare": "--allow-late"}
"""Options that make a command shorter, or let it pass on a busy machine; the last one counts."""


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Each command of a page, with the output that the page shows after its block."""
    for block, shown in BLOCK.findall(page.read_text("utf-8")):
        typed = ""
        for line in block.splitlines():
            typed += line
            if typed.count("'") % 2:
                typed += "\n"  # a quotation goes on
                continue
            if typed and not typed.startswith("#"):
                yield typed, shown
            typed = ""


def begins(command: str, known: tuple[str, ...] | dict[str, str]) -> bool:
    return any(command.startswith(beginning) for beginning in known)


EVERY = [(page.name, command, shown) for page in PAGES for command, shown in commands(page)]
RUN = [found for found in EVERY if not begins(found[1], NOT_RUN)]


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[str, str]]:
    """The addresses of the API and the admin port of a running demo."""
    command = [sys.executable, "-m", "loadtests.demo", "--free-ports"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line
                if "Serving until Ctrl-C" in line:
                    break
            found = re.search(r"curl -N (http://[\d.:]+)/v1", printed)
            admin = re.search(r"(http://[\d.:]+)/admin/state", printed)
            assert found, printed
            assert admin, printed
            yield found[1], admin[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what a checkout has, and with the files that the guides take for granted."""
    shutil.copytree(ROOT / "policies", tmp_path / "policies")
    (tmp_path / "calls.jsonl").write_bytes(gzip.decompress(JOURNAL.read_bytes()))
    return tmp_path


def run(command: str, folder: Path, api: str = "", admin: str = "") -> str:
    """Run a command of a page as a user would, but sooner over. Returns its output."""
    tests = sorted(folder.glob("loadtest-results/*"))
    for name, more in SHORTER.items():
        command += f" {more}" if name in command else ""
    python = shlex.quote(sys.executable)
    meant = {
        ".venv/bin/tailgate": f"{python} -m gateway",
        ".venv/bin/python": python,
        "python3 -c": f"{python} -c",
        "make scenario": f"{python} -m gateway load scenario",
        "loadtest-results/TIME": str(tests[0]) if tests else "loadtest-results/TIME",
        "http://127.0.0.1:8080": api,
        "http://127.0.0.1:9090": admin,
    }
    command = re.sub("|".join(map(re.escape, meant)), lambda found: meant[found[0]], command)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1", "TAILGATE_KEY": "unused"}
    environment["COLUMNS"] = "200"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def is_alike(printed: str, shown: str) -> bool:
    """The same words, and numbers within `TOLERANCE`: what a simulation finds moves with each change of a decision."""
    if NUMBER.sub("#", printed).split() != NUMBER.sub("#", shown).split():
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(math.isclose(float(found), float(wanted), rel_tol=TOLERANCE) for found, wanted in pairs)


def check_output(printed: str, shown: str) -> None:
    """Every line that the page shows is printed, in this order."""
    lines = iter(printed.splitlines())
    for line in shown.splitlines():
        assert any(is_alike(other, line) for other in lines), f"{line}\nis not (or not in this order) in\n{printed}"


def test_only_small_differences_of_numbers_pass() -> None:
    assert is_alike("knee   49.7/s  for 6 replicas", "knee  49.3/s for 6 replicas")
    assert not is_alike("knee 49.7/s for 6 replicas", "knee 44/s for 6 replicas")
    assert not is_alike("knee 49.7/s for 6 replicas", "knee 49.7/s for 5 replicas")
    assert not is_alike("knee 49.7/s", "the knee 49.7/s")


@pytest.mark.parametrize("page", sorted({page for page, command, _ in RUN if not begins(command, LONG)}))
def test_commands_of_a_page_run_and_print_what_is_shown(page: str, folder: Path, demo: tuple[str, str]) -> None:
    for name, command, shown in RUN:
        if name == page and not begins(command, LONG):
            check_output(run(command, folder, *demo), shown)


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "shown"),
    [pytest.param(*found, id=f"{page}-{found[0][:60]}") for page, *found in RUN if begins(found[0], LONG)],
)
def test_long_command_of_a_page_runs_and_prints_what_is_shown(command: str, shown: str, folder: Path) -> None:
    check_output(run(command, folder), shown)


def test_commands_that_are_not_run_are_in_the_pages() -> None:
    typed = [command for _, command, _ in EVERY]
    assert [known for known in NOT_RUN if not any(command.startswith(known) for command in typed)] == []


def test_traffic_of_each_load_test_has_only_tiers_of_its_policy() -> None:
    tested = 0
    for _, command, _ in EVERY:
        given = dict(re.findall(r"--(policy|workload) (\S+)", command))
        if "tailgate load " in command and len(given) == 2 and (ROOT / given["policy"]).exists():
            policy = load(ROOT / given["policy"])
            traffic = traffic_of(
                None, given["workload"], mix=None, policy=policy, model=None, rate=10.0, speed=None, duration=20.0
            )
            tiers = {arrival.tier for arrival in traffic.arrivals(1)}
            assert tiers <= set(policy.tiers), command
            tested += 1
    assert tested
