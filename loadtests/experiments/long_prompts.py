"""CPU of the gateway at 50 requests/s of long prompts, with 100 replicas scraped.

Each request has its own prompt, and an answer of 128 streamed tokens. The emulated replicas are read once a second. A
peer's public sizing guide plans 32 cores for 100,000-token prompts at this rate.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.observe.build_info import is_compiled
from gateway.sim.analysis.report import Interval
from loadtests.children import Children
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, line, span, written
from loadtests.experiments.runner import Runner
from loadtests.experiments.tester import tested
from loadtests.live.start import GATEWAY_LISTENS, gateway, ready, replicas
from loadtests.processes import Neighbours, raise_file_limit, tree_usage

REPLICAS, RATE_PER_S, ANSWER_TOKENS = 100, 50.0, 128
PROMPTS = (1_000, 10_000, 100_000)
ENGINE = ("--profile", "long", "--no-enable-prefix-caching")
SPEED = 10.0
"""Virtual seconds per real one: 100 of these engines would be full of such prompts."""
RUNS, QUICK_RUNS = 3, 1
SECONDS, QUICK_SECONDS = 20.0, 3.0
SETTLE_S = 3.0
"""Time after the start that is not measured."""
FILES = 4096


def long_prompts(runner: Runner) -> Findings:
    """Scrapes alone, then each length of prompt; all of it several times, with a new gateway each time."""
    quick = runner.effort.quick
    runs, seconds = (QUICK_RUNS, QUICK_SECONDS) if quick else (RUNS, SECONDS)
    raise_file_limit(FILES)
    neighbours = Neighbours()
    found = [asyncio.run(_run(runner, run, seconds)) for run in range(1, runs + 1)]
    cores = {tokens: span([cores[tokens] for cores, _ in found]) for tokens in (0, *PROMPTS)}
    findings = Findings(tuple(range(1, runs + 1)))
    findings.figures |= {
        "cores": cores[PROMPTS[-1]],
        "cores_scrapes_alone": cores[0],
        "unanswered": bare(float(sum(lost for _, lost in found)), runs),
    }
    code, others = "compiled" if is_compiled() else "interpreted", neighbours.share()
    findings.how = f"{runs} runs, {seconds:g} s for each length, {code}."
    if others is not None:
        findings.how += f" Others took {others:.0%} of the machine's CPU meanwhile."
    findings.grids.append(_table(cores))
    x = [tokens / 1000 for tokens in PROMPTS]
    alone = Line("scrapes alone", x, [cores[0].value] * len(x), dashed=True)
    lines = [line("with requests", x, [cores[tokens] for tokens in PROMPTS], bold=True), alone]
    title = f"Cores of the gateway at {RATE_PER_S:g} requests/s, {REPLICAS} replicas"
    findings.charts.append(Chart("long-prompts", title, "thousands of tokens in a prompt", "cores", lines, log_x=True))
    return findings


async def _run(runner: Runner, run: int, seconds: float) -> tuple[dict[int, float], int]:
    """Cores by tokens of a prompt (0: nothing is sent), and the number of requests without an answer."""
    with TemporaryDirectory(prefix="tailgate-long-prompts-") as folder:
        async with Children(lambda child, text: None) as children:
            urls, _ = await replicas(children, REPLICAS, "m", SPEED, *ENGINE)
            policy = Path(folder) / "policy.json"
            policy.write_text(_policy(urls))
            child = await children.start("gateway", gateway(policy), GATEWAY_LISTENS)
            api = (await ready(child, children))[1]
            pid, lost = child.process.pid, 0
            runner.tell(f"run {run}: scrapes alone")
            await asyncio.sleep(SETTLE_S)
            began, cpu_s = time.monotonic(), tree_usage(pid).cpu_s
            await asyncio.sleep(seconds)
            idle = (tree_usage(pid).cpu_s - cpu_s) / (time.monotonic() - began)
            cores = {0: idle}
            for tokens in PROMPTS:
                runner.tell(f"run {run}: prompts of {tokens:,} tokens")
                workload = f"prompt_tokens={tokens},output_tokens={ANSWER_TOKENS}"
                load = ["--target", api, "--model", "m", "--workload", workload, "--rate", f"{RATE_PER_S:g}"]
                how = ["--length", "exact", "--duration", f"{seconds:g}", "--no-probe", "--allow-late"]
                began, cpu_s = time.monotonic(), tree_usage(pid).cpu_s
                report = await asyncio.to_thread(tested, [*load, *how, "--warmup", "0", "--seed", f"{run}"], None)
                spent_s = tree_usage(pid).cpu_s - cpu_s
                # Before the tester's first request and after its last answer, only scrapes take CPU.
                cores[tokens] = idle + (spent_s - idle * (time.monotonic() - began)) / seconds
                lost += report["totals"]["offered"] - report["totals"]["finished"]
            return cores, lost


def _policy(urls: list[str]) -> str:
    slo = {"ttft": {"p99": "30s"}, "tpot": {"p99": "150ms"}}
    policy = {
        "apiVersion": "tailgate/v1",
        "models": {"m": {"pools": ["default"]}},
        "pools": {"default": {"engine": "vllm", "replicas": urls}},
        "tiers": {"default": {"slo": slo}},
    }
    return json.dumps(policy)


def _table(cores: dict[int, Interval]) -> Grid:
    rows = [[f"{tokens:,}" if tokens else "none sent", written(of)] for tokens, of in cores.items()]
    return Grid("Cores of the gateway", ["tokens of a prompt", "cores"], rows)
