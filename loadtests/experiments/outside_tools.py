"""Our figures beside those of wrk (closed loop), aiperf and guidellm (open loop, same schedule), at the same target.

The target answers after 200 to 400 ms and then every 20 to 30 ms, in a fixed order. Inter-token latency in aiperf and
guidellm is our TPOT; inter-chunk latency in aiperf is our ITL. wrk sends the same request over as many connections as
our closed loop has clients.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.sim.workload.arrivals import Poisson
from loadtests.experiments.findings import Findings, Grid, span
from loadtests.experiments.runner import Runner
from loadtests.experiments.tester import Failed, server, tested
from loadtests.peers import install
from loadtests.peers.install import Skipped

RUNS, QUICK_RUNS, FULL_RUNS = 2, 1, 5
SECONDS, QUICK_SECONDS, FULL_SECONDS = 10.0, 8.0, 20.0
CONNECTIONS = 32
RATE = 20.0
TOKENS = 16
WORDS = "the and for but not you"
Row = dict[str, float]
"""Latencies in seconds, by metric."""
Tool = Callable[[str, float, int, Path], Row]
"""A function of (URL of the target, seconds, run, folder for files)."""
BODY = '{"model":"m","messages":[{"role":"user","content":"the and for"}],"max_tokens":16}'
POST = 'wrk.method = "POST"\nwrk.body = [[%s]]\nwrk.headers["Content-Type"] = "application/json"\n'
STREAMED = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "itl": "inter_chunk_latency"}
"""Our names of latencies, and aiperf's."""
GUIDELLM = {
    "ttft": ("time_to_first_token_ms", 1e-3),
    "tpot": ("inter_token_latency_ms", 1e-3),
    "e2e": ("request_latency", 1.0),
}
"""Our names of latencies; guidellm's, with their units in seconds."""
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
PERCENT = re.compile(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s)$", re.MULTILINE)


def outside_tools(runner: Runner) -> Findings:
    """Each tool and ours, in turn."""
    runs, seconds = (FULL_RUNS, FULL_SECONDS) if runner.effort.full else (RUNS, SECONDS)
    runs, seconds = (QUICK_RUNS, QUICK_SECONDS) if runner.effort.quick else (runs, seconds)
    findings = Findings(tuple(range(1, runs + 1)))
    rows: list[list[str]] = []
    with TemporaryDirectory(prefix="tailgate-outside-") as name:
        folder = Path(name)
        for tool in TOOLS:
            try:
                pairs = compared(tool, runs, seconds, folder, runner.tell)
            except (Skipped, Failed) as why:  # missing figures count as missed
                findings.notes.append(f"{tool} was left out: {why}")
                continue
            _judge(findings, rows, tool, pairs)
    columns = ["", "", "ours, ms", "theirs, ms", "ours / theirs, least and most"]
    findings.grids.append(Grid("Means of all runs", columns, rows))
    findings.how = (
        f"{runs} runs of each in turn, {seconds:g} s; closed loop: {CONNECTIONS} connections; open loop: {RATE:g} "
        f"requests/s, {TOKENS} tokens each, streamed. A figure is |ours / theirs - 1|: the mean of the runs, the least "
        "and the most."
    )
    return findings


def compared(tool: str, runs: int, seconds: float, folder: Path, tell: Callable[[str], None]) -> list[tuple[Row, Row]]:
    """(Our figures, those of `tool`) of each run. Raises Skipped and Failed."""
    theirs, ours = TOOLS[tool]
    pairs = []
    for run in range(1, runs + 1):
        tell(f"run {run} of {runs}: {tool}")
        other = _against(theirs, seconds, run, folder)
        tell(f"run {run} of {runs}: ours, as {tool}")
        pairs.append((_against(ours, seconds, run, folder), other))
    return pairs


def _judge(findings: Findings, rows: list[list[str]], tool: str, pairs: list[tuple[Row, Row]]) -> None:
    for what in pairs[0][1]:
        ratios = [ours[what] / theirs[what] for ours, theirs in pairs]
        findings.figures[f"{tool}_{what}_off"] = span([abs(ratio - 1.0) for ratio in ratios])
        means = [1e3 * sum(pair[side][what] for pair in pairs) / len(pairs) for side in (0, 1)]
        ends = f"{min(ratios):.3f} to {max(ratios):.3f}"
        rows.append([tool, what.replace("_", " "), f"{means[0]:.1f}", f"{means[1]:.1f}", ends])
    findings.raw[tool] = [{"ours": ours, "theirs": theirs} for ours, theirs in pairs]


def _against(tool: Tool, seconds: float, run: int, folder: Path) -> Row:
    """Run our tool and another in turn. Every run has its own target, so that all see the same order of latencies."""
    with _target() as url:
        return tool(url, seconds, run, folder)


@contextmanager
def _target() -> Iterator[str]:
    with server("loadtests.experiments.paced", ["--tokens", f"{TOKENS}"]) as port:
        yield f"http://127.0.0.1:{port}"


def _wrk(url: str, seconds: float, run: int, folder: Path) -> Row:
    command = shutil.which("wrk")
    if command is None:
        raise Skipped("wrk is not on PATH (Debian has it: apt-get install wrk)")
    script = folder / "post.lua"
    script.write_text(POST % BODY)
    options = ["-t", "1", "-c", f"{CONNECTIONS}", "-d", f"{seconds:g}s", "--latency", "-s", str(script)]
    done = subprocess.run([command, *options, f"{url}/v1/chat/completions"], capture_output=True, text=True)
    found = {f"e2e_p{q}": float(value) * UNITS[unit] for q, value, unit in PERCENT.findall(done.stdout)}
    if len(found) != 2:
        raise Failed(f"wrk printed no percentiles: {done.stdout}{done.stderr}")
    return found


def _closed(url: str, seconds: float, run: int, folder: Path) -> Row:
    traffic = ["--workload", f"prompt_tokens=10,output_tokens={TOKENS},streamed=0%", "--closed-loop", f"{CONNECTIONS}"]
    of = tested(["--target", url, *traffic, "--duration", f"{seconds:g}", "--no-probe"], None)
    latency = of["totals"]["latencies"]["e2e"]
    return {"e2e_p50": latency["p50"], "e2e_p99": latency["p99"]}


def _open(url: str, seconds: float, run: int, folder: Path) -> Row:
    _schedule(folder, seconds, run)
    of = tested(["--target", url, "--trace", str(folder / "ours.jsonl"), "--model", "m", "--no-probe"], None)
    found = {**of["totals"]["latencies"], "itl": of["totals"]["itl"]}
    return {f"{metric}_{q}": found[metric][q] for metric in (*STREAMED, "e2e") for q in ("p50", "p99")}


def _guidellm(url: str, seconds: float, run: int, folder: Path) -> Row:
    command = shutil.which("guidellm")
    if command is None:
        raise Skipped(f"guidellm is not on PATH (pip install {install.GUIDELLM})")
    _schedule(folder, seconds, run)
    source = {"kind": "json_file", "path": str(folder / "guidellm.jsonl")}
    out = folder / f"guidellm-{run}.json"
    spec = {
        "backend": {"kind": "openai_http", "target": url, "model": "m"},
        "profile": {"kind": "replay", "schedule_turn": "timestamp"},
        "tokenizer": {"kind": "huggingface_auto", "model": str(_tokenizer(folder))},
        "data": [{"kind": "trace_synthetic", "source": source}],
        "outputs": [{"kind": "json", "path": str(out)}],
    }
    config = folder / "guidellm-config.json"
    config.write_text(json.dumps({"spec": spec}))
    options = ["run", "--config", str(config), "--disable-console"]
    alone = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([command, *options], capture_output=True, text=True, cwd=folder, env=alone)
    if not out.exists():
        raise Failed(f"guidellm wrote no report: {(done.stdout + done.stderr).strip()[-300:]}")
    said = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    return {
        f"{metric}_{q}": said[name]["successful"]["percentiles"][q] * unit_s
        for metric, (name, unit_s) in GUIDELLM.items()
        for q in ("p50", "p99")
    }


def _aiperf(url: str, seconds: float, run: int, folder: Path) -> Row:
    command = install.aiperf()
    _schedule(folder, seconds, run)
    out = folder / f"aiperf-{run}"
    options = ["profile", "--model", "m", "--url", url, "--endpoint-type", "chat", "--streaming"]
    options += [
        "--custom-dataset-type",
        "mooncake_trace",
        "--input-file",
        str(folder / "aiperf.jsonl"),
        "--fixed-schedule",
    ]
    options += ["--tokenizer", str(_tokenizer(folder)), "--use-server-token-count", "--artifact-dir", str(out)]
    done = subprocess.run([str(command), *options, "--ui", "none"], capture_output=True, text=True, cwd=folder)
    report = out / "profile_export_aiperf.json"
    if not report.exists():
        raise Failed(f"aiperf wrote no report: {(done.stdout + done.stderr).strip()[-300:]}")
    said = json.loads(report.read_text())
    return {f"{metric}_{q}": said[name][q] / 1e3 for metric, name in STREAMED.items() for q in ("p50", "p99")}


def _schedule(folder: Path, seconds: float, run: int) -> None:
    """The same schedule for each tool, in its format."""
    arrivals = list(Poisson(RATE, seconds, 10, TOKENS).arrivals(run))
    ours = ({"at": round(a.at, 3), "prompt_tokens": 10, "output_tokens": TOKENS} for a in arrivals)
    theirs = ({"timestamp": round(a.at * 1000), "text_input": WORDS, "output_length": TOKENS} for a in arrivals)
    lengths = ({"timestamp": round(a.at, 3), "input_length": 3, "output_length": TOKENS} for a in arrivals)
    for name, rows in (("ours", ours), ("aiperf", theirs), ("guidellm", lengths)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _tokenizer(folder: Path) -> Path:
    """aiperf always loads a tokenizer. This one has ten words, so that nothing is downloaded."""
    home = folder / "tokenizer"
    home.mkdir(exist_ok=True)
    special = ("<unk>", "<s>", "</s>")
    model = {
        "type": "WordLevel",
        "vocab": {word: n for n, word in enumerate((*special, *WORDS.split(), "a"))},
        "unk_token": "<unk>",
    }
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": n, "content": word, "special": True, **flags} for n, word in enumerate(special)]
    whole = {"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    names = dict(zip(("unk_token", "bos_token", "eos_token"), special, strict=True))
    (home / "tokenizer.json").write_text(json.dumps(whole))
    (home / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return home


TOOLS: dict[str, tuple[Tool, Tool]] = {
    "wrk": (_wrk, _closed),
    "aiperf": (_aiperf, _open),
    "guidellm": (_guidellm, _open),
}
"""Each tool, and ours with the same load."""
