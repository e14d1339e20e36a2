"""`tailgate load run` as a process, against an emulated replica."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtests.__main__ import app
from loadtests.commands.asked import unnamed_tier
from loadtests.commands.run import OURS
from loadtests.emulator.emulator import Emulator
from loadtests.emulator.replica import EmulatedReplica
from loadtests.replay.columns import read_rows
from loadtests.report.figures import report
from loadtests.report.pictures import pictures
from loadtests.report.run_file import read_run
from tests.fleet.replicas import until
from tests.loadtests.replay.test_models import listed, serving
from tests.loadtests.report.made import policy as made_policy
from tests.loadtests.report.made import written
from tests.loadtests.report.test_figures import MIXED
from tests.loadtests.report.test_over_load import made, served, steps

ROOT = Path(__file__).resolve().parents[3]
LINE = "prompt_tokens=40,output_tokens=5"
POLICY = """
apiVersion: tailgate/v1
kind: Policy
pools:
  main: {replicas: [http://127.0.0.1:8101], slots: 8}
models:
  default: {pools: [main]}
tiers:
  premium: {priority: 0, slo: {ttft: {p99: 1s}}}
  standard: {priority: 1}
  free: {priority: 2}
defaults: {tier: free}
"""


@pytest.fixture
async def replica() -> AsyncIterator[EmulatedReplica]:
    async with Emulator(time_scale=50.0, model="m") as emulator:
        yield emulator.replicas[0]


async def started(*options: str, paths: Sequence[Path] = ()) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtests", "run", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT]))},
    )  # fmt: skip


async def run(*options: str, paths: Sequence[Path] = ()) -> tuple[int | None, str, str]:
    process = await started(*options, paths=paths)
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


async def test_run_from_end_to_end_writes_a_report(replica: EmulatedReplica, tmp_path: Path) -> None:
    options = ["--target", replica.url, "--model", "m", "--workload", LINE, "--rate", "50", "--duration", "1"]
    status, out, errors = await run(*options, "--max-late", "5000", "--out", str(tmp_path), "--json")
    assert (status, errors) == (0, "")
    found = json.loads(out)
    assert found == json.loads((tmp_path / "report.json").read_text())
    assert found["totals"]["good"] == found["totals"]["offered"] > 20
    assert found["prompts"]["prompt_tokens"] == found["prompts"]["prompt_tokens_counted"]
    assert "<svg" in (tmp_path / "report.html").read_text()


async def test_run_uses_the_only_model_of_the_target_if_none_is_named(replica: EmulatedReplica, tmp_path: Path) -> None:
    options = ["--target", replica.url, "--workload", LINE, "--rate", "50", "--duration", "1", "--max-late", "5000"]
    status, out, errors = await run(*options, "--out", str(tmp_path), "--json")
    assert status == 0
    assert "has no model default: all requests use its only model, m" in " ".join(errors.split())
    assert json.loads(out)["totals"]["finished"] > 20
    status, _, errors = await run(*options, "--model", "other", "--out", str(tmp_path))
    assert (status, "has no model other: give one of its models with --model: m" in " ".join(errors.split())) == (
        2,
        True,
    )


async def test_run_needs_the_name_of_one_of_several_models(tmp_path: Path) -> None:
    async with serving(listed("llama", "qwen")) as (url, _):
        status, _, errors = await run("--target", url, "--workload", LINE, "--out", str(tmp_path))
    assert (status, "with --model: llama, qwen" in " ".join(errors.split())) == (2, True), errors


@pytest.mark.parametrize("command", [[], ["run"], ["scenario"]])
def test_help_option_has_a_short_name(command: list[str]) -> None:
    short, long = (CliRunner().invoke(app, [*command, name]) for name in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)


async def test_ctrl_c_reports_the_requests_so_far(replica: EmulatedReplica, tmp_path: Path) -> None:
    options = ["--target", replica.url, "--model", "m", "--workload", LINE, "--rate", "100", "--duration", "3600"]
    process = await started(*options, "--max-late", "5000", "--out", str(tmp_path))
    await replica.until(lambda of: of.received_total > 20, 30.0)
    process.send_signal(signal.SIGINT)
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert "Partial: the test was stopped." in out.decode()
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["complete"] is False
    assert found["totals"]["finished"] > 10
    assert found["seconds"] < 3600


async def test_ctrl_c_before_the_first_request_reports_nothing(replica: EmulatedReplica, tmp_path: Path) -> None:
    options = ["--target", replica.url, "--model", "m", "--workload", LINE, "--rate", "0.001", "--duration", "9999"]
    process = await started(*options, "--out", str(tmp_path))
    await until(lambda: (tmp_path / "requests.npy").exists())
    process.send_signal(signal.SIGINT)
    _, said = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert "nothing to report" in said.decode()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "--trace FILE, --workload SPEC or --prompts FILE"),
        (["--workload", "chatt"], "did you mean chat"),
        (["--workload", "prompt_tokens=3,cv="], "'cv=': each part is NAME=VALUE"),
        (["--workload", "prompt_tokens=3,output_token=3"], "output_token is unknown: did you mean output_tokens?"),
        (["--workload", "output_tokens=abc"], "--workload: output_tokens: abc is neither a number of tokens nor"),
        (["--workload", "cv=-1"], "--workload: cv: -1 is too small"),
        (["--workload", "streamed=x", "--mix", "a=50%,b=50%"], "--workload: streamed: x is not a share"),
        (["--workload", "chat", "--keys", "nowhere"], "--keys: cannot read nowhere: No such file"),
        (["--workload", "chat", "--keys", "docs"], "--keys: cannot read docs: Is a directory"),
        (["--workload", "chat", "--speed", "2"], "--speed is for traces"),
        (["--workload", "chat", "--sample", "2"], "--sample: goes with --prompts"),
        (["--workload", "chat", "--no-stream", "--processes", "2"], "--stream: goes with --prompts"),
        (["--workload", "chat", "--shard", "1/2", "--processes", "2"], "--shard: goes without --processes"),
        (["--workload", "chat", "--align", "60", "--processes", "2"], "--align: goes without --processes"),
        (["--workload", "chat", "--key", "=x"], "a key is written KEY, or TIER=KEY"),
        (["--workload", "chat", "--key", "premum=x"], "no tier premum: did you mean premium"),
        (["--workload", LINE, "--mix", "a=50%,b=50%", "--key", "c=x"], "(tiers: a, b)"),
        (["--workload", "chat", "--extra", "[]"], "not a JSON object"),
        (["--workload", "chat", "--extra", '{"n": NaN}'], "--extra is not JSON"),
        (["--workload", "chat", "--extra", '{"n": 1' + 400 * "0" + "}"], "--extra is not JSON"),
        (["--workload", "chat", "--extra", '{"n":' + 9999 * "["], "--extra is not JSON"),
        (
            ["--workload", "chat", "--extra", '{"stream": false}'],
            "--extra: stream is written by the load tester itself",
        ),
        (
            ["--workload", "chat", "--extra", '{"model": "m"}'],
            "model is written by the load tester itself: give --model",
        ),
        (["--workload", "chat", "--key", "a b"], "--key: a key is printable ASCII without spaces"),
        (["--workload", LINE, "--mix", "a=50%,a=50%"], "--mix a=50%,a=50%: a is there twice: add its shares up"),
        (["--workload", "chat", "--seed", str(2**64)], "Invalid value for '--seed'"),
        (["--workload", "chat", "--retries", str(2**64)], "Invalid value for '--retries'"),
        (["--workload", "chat", "--mix", "a=100%"], "--mix is for traces"),
        (["--workload", LINE, "--mix", "standard=x"], "--mix standard=x: a mix is written TIER=SHARE"),
        (["--trace", "nowhere.csv"], "the file does not exist"),
        (["--workload", "chat", "--target", "http://127.0.0.1:2"], "one target is tested at a time"),
        (["--workload", LINE, "--duration", "5", "--warmup", "5"], "--warmup 5 leaves nothing to count of 5 s"),
        (["--workload", LINE, "--warmup", "inf"], "inf is not a finite duration"),
        (["--workload", LINE, "--rate", "inf"], "inf is not a finite rate"),
        (["--workload", LINE, "--rate", "1e400"], "1e400 is not a finite rate"),
        (["--workload", LINE, "--max-late", "inf"], "inf is not a finite number"),
        (["--trace", "loadtests/traces/small.jsonl", "--speed", "inf"], "inf is not a finite number"),
        (["--trace", "loadtests/traces/small.jsonl", "--speed", "nan"], "Invalid value for '--speed'"),
        (["--workload", LINE, "--closed-loop", "2", "--rate", "5"], "--closed-loop sends after each answer"),
        (["--workload", LINE, "--out", "README.md"], "--out: cannot write README.md: that is a file"),
    ],
)
def test_bad_run_option_is_refused_before_any_request_is_sent(
    options: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    found = CliRunner().invoke(app, ["run", "--target", "http://127.0.0.1:1", *options])
    assert found.exit_code == 2
    assert told in found.stderr


@pytest.mark.parametrize("command", [("run", "--workload", "chat"), ("calibrate",)])
@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("localhost:1", "not the address of a server"),
        ("http://me:s3cret@127.0.0.1:1", "a user name or password in an address is not sent: leave it out, and give a"),
        ("http://127.0.0.1:99999", "http://127.0.0.1:99999 is not the address of a server: Port out of range 0-65535"),
        ("http://127.0.0.1:1,http://127.0.0.1:2", "one target is tested at a time"),
    ],
)
def test_malformed_target_exits_with_2_and_hides_its_password(command: tuple[str, ...], target: str, told: str) -> None:
    found = CliRunner().invoke(app, [*command, "--target", target])
    assert (found.exit_code, told in found.stderr) == (2, True), found.stderr
    assert "s3cret" not in found.output


def test_run_of_an_empty_trace_says_that_it_is_empty(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.touch()
    found = CliRunner().invoke(app, ["run", "--target", "http://127.0.0.1:1", "--trace", str(trace)])
    assert (found.exit_code, f"{trace}: is empty" in found.stderr) == (2, True), found.stderr


@pytest.mark.parametrize("rows", ["", "2026-01-01 00:00:00.0000000,0,10\n"], ids=["none", "of no tokens"])
@pytest.mark.parametrize("options", [(), ("--closed-loop", "2", "--duration", "5")], ids=["open", "closed"])
def test_run_of_a_trace_without_requests_is_refused_instead_of_looping(
    rows: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    found = CliRunner().invoke(app, ["run", "--target", "http://127.0.0.1:1", "--trace", str(trace), *options])
    assert (found.exit_code, "trace.csv: it has no request" in found.stderr) == (2, True), found.stderr


@pytest.mark.parametrize("spec", ["chat", "gateway/sim/workloads/chat.yaml"])
def test_a_workload_that_has_tiers_of_its_own_is_held_against_a_policy(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    options = ["--target", "http://127.0.0.1:1", "--workload", spec, "--policy", str(policy), "--out", str(tmp_path)]
    found = CliRunner().invoke(app, ["run", *options])
    assert (found.exit_code, "cannot be reached" in found.stderr) == (1, True), found.stderr


async def test_run_out_of_connections_of_the_machine_reports_nothing(replica: EmulatedReplica, tmp_path: Path) -> None:
    replica.fault("pause")
    options = ["--target", replica.url, "--model", "m", "--workload", LINE, "--rate", "200", "--no-probe"]
    command = shlex.join([sys.executable, "-m", "loadtests", "run", *options, "--out", str(tmp_path)])
    process = await asyncio.create_subprocess_shell(
        f"ulimit -n 64 && exec {command}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    _, errors = await process.communicate()
    told = " ".join(errors.decode().split())
    assert (process.returncode, "ulimit -n" in told) == (3, True), told
    assert not (tmp_path / "report.json").exists()


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ('{"at": 0.2, "prompt_tokens": 40}', "trace.jsonl:4: Object missing required field `output_tokens`"),
        ('{"at": 0.2, "prompt_tokens": 40, "output_tokens": 5, "tier": "gold"}', "the traffic has tier gold"),
    ],
)
async def test_bad_trace_row_ends_the_run_and_reports_the_requests_so_far(
    replica: EmulatedReplica, tmp_path: Path, row: str, told: str
) -> None:
    trace, policy, out = tmp_path / "trace.jsonl", tmp_path / "policy.yaml", tmp_path / "out"
    good = '{"at": 0.1, "prompt_tokens": 40, "output_tokens": 5, "tier": "free"}\n'
    trace.write_text(f"{good * 3}{row}\n{good * 3}")
    policy.write_text(POLICY)
    options = ["--target", replica.url, "--model", "m", "--trace", str(trace), "--policy", str(policy)]
    status, shown, errors = await run(*options, "--max-late", "5000", "--out", str(out))
    assert status == 2
    assert told in " ".join(errors.split())
    found = json.loads((out / "report.json").read_text())
    assert (found["complete"], found["totals"]["offered"], found["totals"]["finished"]) == (False, 3, 3)
    why = found["about"]["wrong_row"]
    assert f"{why}. The test ended there" in " ".join(errors.split())
    for text in (shown, (out / "report.html").read_text()):
        assert "Partial: the test ended at a wrong row of the trace" in " ".join(text.split())
        assert "the test was stopped" not in text


async def test_run_leaves_out_trace_rows_of_0_tokens_and_says_so(replica: EmulatedReplica, tmp_path: Path) -> None:
    trace, row = tmp_path / "trace.jsonl", '{{"at": 0.1, "prompt_tokens": 40, "output_tokens": {}}}\n'
    trace.write_text(row.format(5) + row.format(0) * 3 + row.format(5))
    options = ["--target", replica.url, "--model", "m", "--trace", str(trace)]
    status, out, _ = await run(*options, "--max-late", "5000", "--out", str(tmp_path / "out"))
    assert status == 0
    assert "3 rows of the traffic were left out" in out
    about = json.loads((tmp_path / "out" / "report.json").read_text())["about"]
    assert (about["empty_rows"], about["unnamed_tier"]) == (3, "default")


def test_requests_without_a_named_tier_count_as_default() -> None:
    policy = made_policy()
    assert [unnamed_tier(*asked) for asked in ((None, None, None), (LINE, None, None))] == ["default", "default"]
    named = ((None, "a=100%", None), (None, None, policy), ("chat", None, None), (LINE, None, policy))
    assert [unnamed_tier(*asked) for asked in named] == [None] * 4


async def test_files_of_an_earlier_run_are_removed_before_a_new_run(replica: EmulatedReplica, tmp_path: Path) -> None:
    for name in ("report.json", "report.html", "run.json", "requests.npy", "misses.svg", "notes.txt"):
        (tmp_path / name).write_text("earlier")
    options = ["--model", "m", "--workload", LINE, "--rate", "100", "--duration", "0.2", "--max-late", "5000"]
    status, _, errors = await run("--target", replica.url, *options, "--out", str(tmp_path))
    assert status == 0, errors
    others = {name for name in os.listdir(tmp_path) if not name.endswith(".svg")}
    assert others == {"notes.txt", "report.html", "report.json", "requests.npy", "run.json"}
    assert (tmp_path / "misses.svg").read_text() != "earlier"
    assert (tmp_path / "notes.txt").read_text() == "earlier" != (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("probe", ["--probe", "--no-probe"])
def test_run_without_an_answering_target_keeps_the_earlier_results(
    probe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "report.json").write_text("earlier")
    options = ["run", "--target", "http://127.0.0.1:1", "--workload", LINE, probe]
    assert CliRunner().invoke(app, options).exit_code == 1
    assert CliRunner().invoke(app, [*options, "--out", "earlier"]).exit_code == 1
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "earlier",
        "earlier/report.json",
    ]


def test_every_report_picture_is_in_the_list_of_removable_files(tmp_path: Path) -> None:
    mixed = report(read_run(written(tmp_path / "mixed", MIXED)), read_rows(tmp_path / "mixed"), made_policy())
    stepped = made(tmp_path / "stepped", served(steps(10, 20, 30, 60, 90)))
    drawn = {f"{picture.name}.svg" for found in (mixed, stepped) for picture in pictures(found)}
    assert "over-load.svg" in drawn
    assert drawn <= set(OURS)


def test_run_refuses_a_tier_that_the_policy_lacks_before_sending(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    options = ["--workload", LINE, "--mix", "free=50%,gold=50%", "--policy", str(policy)]
    found = CliRunner().invoke(app, ["run", "--target", "http://127.0.0.1:1", *options])
    assert found.exit_code == 2
    assert "--mix free=50%,gold=50%: the traffic has tier gold, the policy only" in found.stderr


def test_run_with_an_unreachable_target_exits_with_1(tmp_path: Path) -> None:
    options = ["--target", "http://127.0.0.1:1", "--workload", LINE, "--duration", "1", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, ["run", *options])
    assert found.exit_code == 1
    assert "http://127.0.0.1:1 cannot be reached" in found.stderr


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_run_with_an_impossible_host_name_exits_with_1(host: str, tmp_path: Path) -> None:
    options = ["--target", f"http://{host}:80", "--model", "m", "--workload", LINE, "--out", str(tmp_path)]
    found = CliRunner().invoke(app, ["run", *options])
    assert (found.exit_code, found.stderr) == (1, f"http://{host}:80 cannot be reached: no host can have that name\n")


async def test_run_with_every_request_refused_has_its_own_exit_status(replica: EmulatedReplica, tmp_path: Path) -> None:
    status, _, said = await run(
        *("--target", replica.url, "--model", "other", "--workload", LINE, "--duration", "1", "--no-probe"),
        *("--out", str(tmp_path), "--max-late", "60000"),
    )
    assert status == 1, said
    assert re.search(r"Nothing counts: (\d+) of \1 requests are in no share: \1 invalid: 404", said)


def test_processes_send_one_test_together(tmp_path: Path) -> None:
    emulator = (sys.executable, "-m", "loadtests.emulator", "--port", "0", "--model", "default", "--time-scale", "50")
    with subprocess.Popen(emulator, stdout=subprocess.PIPE, text=True) as replica:
        assert replica.stdout is not None
        url = replica.stdout.readline().split()[0]
        command = (sys.executable, "-m", "loadtests", "run", "--target", url, "--rate", "40", "--duration", "2")
        options = ("--workload", "prompt_tokens=20,output_tokens=3", "--processes", "2", "--allow-late", "--json")
        done = subprocess.run(
            [*command, *options, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
        )
        replica.terminate()
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["about"]["shards"] == 2
    halves = [json.loads((tmp_path / "out" / f"shard-{n}" / "report.json").read_text()) for n in (1, 2)]
    assert [half["totals"]["offered"] for half in halves] != [0, 0]
    assert report["totals"]["offered"] == sum(half["totals"]["offered"] for half in halves)
    assert report["totals"]["finished"] == report["totals"]["offered"]


async def test_process_without_a_request_of_its_own_is_no_failure(replica: EmulatedReplica, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    command = ("--target", replica.url, "--model", "m", "--prompts", str(tmp_path / "prompts.txt"), "--rate", "50")
    status, out, said = await run(
        *command, "--processes", "3", "--allow-late", "--json", "--out", str(tmp_path / "out")
    )
    assert status == 0, said
    assert json.loads(out)["totals"]["finished"] == 2


async def test_process_that_fails_says_why(replica: EmulatedReplica, tmp_path: Path) -> None:
    command = ("--target", replica.url, "--model", "m", "--workload", LINE, "--rate", "50", "--duration", "1")
    (tmp_path / "shard-2" / "report.html").mkdir(parents=True)
    status, _, said = await run(*command, "--processes", "2", "--allow-late", "--out", str(tmp_path))
    assert status == 2
    assert "shard-2" in said.splitlines()[0]
    assert "1 of 2 generators left no rows: the reason is above" in said


async def test_ctrl_c_reaches_each_of_several_processes_once(replica: EmulatedReplica, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "loadtests", "run", "--target", replica.url, "--model", "m", "--workload", LINE)
    options = ("--rate", "20", "--duration", "9999", "--processes", "2", "--allow-late", "--json")
    process = await asyncio.create_subprocess_exec(
        *command, *options, "--out", str(tmp_path), stdout=subprocess.PIPE, start_new_session=True
    )
    await replica.until(lambda of: of.received_total > 60, 30.0)
    listing = ("ps", "-eo", "ppid=,pid=,pgid=")
    shown = await asyncio.to_thread(subprocess.run, listing, capture_output=True, text=True, check=True)
    rows = [line.split() for line in shown.stdout.splitlines()]
    groups = {pid: group for parent, pid, group in rows if parent == str(process.pid)}
    assert len(groups) == 2
    assert all(group == pid for pid, group in groups.items())  # a terminal signals the group of the first process
    os.killpg(process.pid, signal.SIGINT)
    said, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert json.loads(said)["about"]["shards"] == 2
