"""`tailgate load run`: traffic to a live target, and a report of the outcomes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gateway.cli.output import console, exits, refuse_unused
from gateway.cli.quantities import RateOption, WarmupOption, finite, seconds
from gateway.core.policy import Policy
from gateway.policy import load
from gateway.sim.workload.arrivals import Arrival
from loadtests.commands.asked import check_warmup, fields_of, keys_of, one_target, traffic_of, unnamed_tier, whose
from loadtests.commands.options import MaxLateOption
from loadtests.commands.progress import Progress
from loadtests.commands.prompts import History, PromptOptions, prompts_of
from loadtests.commands.report import conclude
from loadtests.commands.together import sent_together
from loadtests.replay.columns import Columns
from loadtests.replay.kept_answers import ANSWERS, KeptAnswers
from loadtests.replay.models import WhichModel, contact, with_its_model
from loadtests.replay.play import Plan, Played, Recorder, play
from loadtests.replay.probe import NoContact, reach
from loadtests.replay.shard import beginning, shard_of
from loadtests.replay.target import Length, Target
from loadtests.replay.traffic import Traffic
from loadtests.replay.unconnected import OwnLimit
from loadtests.replay.written import Written
from loadtests.report.judged import slo_of
from loadtests.report.pictures import NAMES
from loadtests.report.run_file import About, write_run
from loadtests.report.trust import apart
from loadtests.terminal.written import FOLDER, check_writable, writing

OF_PROMPTS = ("api", "stream", "sample", "shuffle", "history", "think")
OF_ONE_PROCESS = ("shard", "begin_at", "align", "closed_loop")
ENDS = signal.SIGINT, signal.SIGTERM
OURS = ("report.json", "report.html", "run.json", "requests.npy", ANSWERS, *(f"{name}.svg" for name in NAMES))
"""Files that a test leaves in its folder."""


class Nothing(Exception):
    """There is nothing to send: the traffic is empty, or the first row of the trace is wrong."""


def run_command(
    context: typer.Context,
    targets: Annotated[
        list[str], typer.Option("--target", metavar="URL", help="The gateway, or any server with an OpenAI API.")
    ],
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Replay a trace (docs/reference/workloads.md)."),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            show_default=False,
            help="Made-up traffic: a name, a file, or a line such as prompt_tokens=500,output_tokens=100,cv=1.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Your own prompts: an OpenAI Batch file, JSON lines of bodies, ShareGPT, or plain lines.",
        ),
    ] = None,
    api: Annotated[
        str | None, typer.Option(metavar="PATH", show_default=False, help="API of bodies in --prompts that name none.")
    ] = None,
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", show_default=False, help="Stream the answers to --prompts.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default=False, help="Take N of --prompts at random.")
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Send --prompts in random order.")] = False,
    history: Annotated[
        History, typer.Option(help="What conversations go on with: the model's own answers, or the recorded ones.")
    ] = History.MODEL,
    think: Annotated[
        float,
        typer.Option(parser=seconds(0.0), metavar="S", help="Mean seconds from an answer to the next question."),
    ] = 1.0,
    keep_answers: Annotated[
        bool, typer.Option("--keep-answers", help="Write the text of answers to answers.jsonl, for you alone.")
    ] = False,
    rate: RateOption = None,
    speed: Annotated[
        float | None,
        typer.Option(min=1e-6, callback=finite, show_default=False, help="Multiple of the recorded speed of a trace."),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            parser=seconds(0.1),
            metavar="S",
            show_default=False,
            help="Seconds in which requests are sent. A workload's steps are cut off, not shortened.",
        ),
    ] = None,
    warmup: WarmupOption = 0.0,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="The policy whose objectives judge the requests."),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(metavar="TIER=SHARE,...", show_default=False, help="Tiers for traffic that names none."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TIER=]KEY",
            show_default=False,
            help="An API key for all requests, or for a tier; several are spread over the tenants.",
        ),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="A file with one [TIER=]KEY on each line.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="The model that every request asks for.")
    ] = None,
    length: Annotated[
        Length,
        typer.Option(
            help="How answers get their length: cap (max_tokens), exact (with ignore_eos: vLLM, SGLang), "
            "hidden (min_tokens alone: emulated replicas)."
        ),
    ] = Length.CAP,
    extra: Annotated[
        str | None, typer.Option(metavar="JSON", show_default=False, help="Fields to add to every body.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**63 - 1, help="Seed of arrivals, lengths and prompts: one seed always gives the same requests."
        ),
    ] = 1,
    closed_loop: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="CLIENTS",
            show_default=False,
            help="Clients that wait for their answers. Shows what such a test hides.",
        ),
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, max=1000, help="How often clients try again, as the OpenAI SDK does.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option(parser=seconds(0.1), metavar="S", help="Seconds of silence after which a client gives up.")
    ] = 600.0,
    grace: Annotated[
        float,
        typer.Option(parser=seconds(0.0), metavar="S", help="Seconds to wait for answers after the last request."),
    ] = 60.0,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", show_default=False, help="Send the I-th of N parts; N alone: I is from JOB_COMPLETION_INDEX."
        ),
    ] = None,
    begin_at: Annotated[
        str | None, typer.Option(metavar="TIME", show_default=False, help="When shards begin: ISO, or since 1970.")
    ] = None,
    align: Annotated[
        float | None,
        typer.Option(parser=seconds(1.0), metavar="S", show_default=False, help="Begin at a multiple of S seconds."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Generators on this machine; their rows are merged.")
    ] = 1,
    max_late: MaxLateOption = 10.0,
    allow_late: Annotated[
        bool, typer.Option("--allow-late", help="Exit with 0 even if the generator was later, and never give up.")
    ] = False,
    probe_first: Annotated[
        bool, typer.Option("--probe/--no-probe", help="First measure how the target counts prompt tokens.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Folder for the results (loadtest-results/TIME)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json instead of a summary.")] = False,
) -> None:
    """Send traffic to a live target in an open loop, and report the outcomes.

    Every request is sent when it is due, without waiting for earlier answers; its latency counts from that time. Ctrl-C
    ends the test early, with a report.

    `tailgate load run --target http://127.0.0.1:8080 --workload chat --rate 5 --duration 60`

    Exit status 0: there is a report. 1: no contact with the target, or the report could not be written. 2: wrong
    options (also a `--model` that the target does not list, or several models and no `--model`), or a wrong row in
    the trace. The requests before a wrong row are reported. 3: the generator fell behind, and the report is marked; or
    it can open no more connections, and there is no report. 130: stopped by Ctrl-C, with a partial report.
    """
    errors = console(stderr=True)
    if prompts is None:
        refuse_unused(context, OF_PROMPTS, "goes with --prompts")
    if processes > 1:
        refuse_unused(context, OF_ONE_PROCESS, "goes without --processes, which makes shards of its own")
        together = out or FOLDER / datetime.now().strftime("%Y%m%d-%H%M%S")
        raise typer.Exit(sent_together(processes, together, policy, allow_late=allow_late, as_json=as_json))
    with exits(2, ValueError, OSError):
        own, begin_at_s = shard_of(shard, os.environ), beginning(begin_at, align, time.time())
        if own.count > 1 and closed_loop is not None:
            raise ValueError("--shard is for open loops: give each generator its own --closed-loop")
        held = None if policy is None else load(policy)
        if prompts is not None:
            kinds = PromptOptions(prompts, api, stream, sample, shuffle, think)
            traffic = prompts_of(kinds, whose(mix, held, model), rate, speed, duration)
            if trace is not None or workload is not None or length is not Length.CAP:
                raise ValueError("--prompts has requests as they are: leave out --trace, --workload and --length")
        else:
            traffic = traffic_of(
                trace, workload, mix=mix, policy=held, model=model, rate=rate, speed=speed, duration=duration
            )
        check_warmup(warmup, traffic)
        if closed_loop is not None and (rate is not None or speed is not None):
            raise ValueError("--closed-loop sends after each answer, at no fixed rate: leave out --rate and --speed")
        by_tier = keys_of(key or [], keys, traffic.tiers if held is None else held.tiers)
        aimed = Target(one_target(targets), model, keys=by_tier, length=length, extra=fields_of(extra))
    about = About(
        target=aimed.url,
        traffic=traffic.name + (traffic.pace if closed_loop is None else ""),
        seed=seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        planned_s=traffic.planned_s,
        warmup_s=warmup,
        max_late_s=max_late / 1e3,
        length=length.value,
        clients=closed_loop,
        retries=retries,
        policy=None if policy is None else str(policy),
        unnamed_tier=unnamed_tier(workload, mix, held),
        own_words=prompts is not None,
        shard=own.index + 1,
        shards=own.count,
        begin_at_s=begin_at_s,
    )
    plan = Plan(
        seed=seed,
        timeout_s=timeout,
        grace_s=grace,
        retries=retries,
        warmup_s=warmup,
        clients=closed_loop,
        until_s=traffic.planned_s,
        gives_up=not allow_late,
        recorded=history is History.RECORDED,
        keeps=keep_answers,
        shard=own,
        begin_at_s=begin_at_s,
    )
    folder = out or FOLDER / datetime.now().strftime("%Y%m%d-%H%M%S")
    check_writable(folder, "--out", folder=True)
    wrong: list[ValueError] = []
    with exits(1, NoContact, OSError), exits(2, Nothing, WhichModel), exits(3, OwnLimit):
        played = uvloop.run(_test(traffic, held, wrong, aimed, plan, about, folder, probe_first))
    refused = ""
    try:
        made = conclude(folder, held, allow_late=allow_late, as_json=as_json)
        if not made["totals"]["counted"]:
            refused = apart(made)
    except typer.Exit as left:
        # Exit status of a stopped test, even with a partial report; a late generator comes first.
        if left.exit_code == 3 or not (wrong or played.interrupted):
            raise
    finally:
        for row in wrong:
            errors.print(f"{row}. The test ended there", style="red")
    if wrong:
        raise typer.Exit(2)
    if played.interrupted:
        raise typer.Exit(130)
    if refused:
        errors.print(f"Nothing counts: {refused}", style="red")
        raise typer.Exit(1)


def _emptied(folder: Path) -> None:
    """Create the folder, and remove the files of an earlier test, which would look like this test's report."""
    with writing(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in OURS:
            (folder / name).unlink(missing_ok=True)


def _until_wrong(arrivals: Iterator[Arrival], policy: Policy | None, wrong: list[ValueError]) -> Iterator[Arrival]:
    """The arrivals before the first wrong row: one that cannot be read, or whose tier the policy lacks. Requests sent
    by then are reported."""
    try:
        for arrival in arrivals:
            slo_of(policy, arrival.tier)
            yield arrival
    except ValueError as error:
        wrong.append(error)


async def _test(
    traffic: Traffic,
    policy: Policy | None,
    wrong: list[ValueError],
    target: Target,
    plan: Plan,
    about: About,
    folder: Path,
    probe_first: bool,
) -> Played:
    """Send the traffic and write rows and run.json, even if the test is stopped or a row turns out to be `wrong`."""
    timed = plan.clients is not None and plan.until_s is not None
    found = traffic.endless(plan.seed) if timed else traffic.arrivals(plan.seed)
    arrivals = _until_wrong(found, policy, wrong)
    first = next(arrivals, None)
    if first is None:
        raise Nothing(wrong[0] if wrong else f"{traffic.name}: it has no request")
    if isinstance(first, Written):
        await reach(target)
        if "model" not in first.body:
            target = await with_its_model(target, first) or target
    elif probe_first:
        target, sizes = await contact(target, first, plan.seed, console(stderr=True).print, plan.timeout_s)
        about = replace(about, left_out=sorted(target.left_out))
        if sizes is not None:
            plan, about = replace(plan, sizes=sizes), replace(about, probed=True)
    else:
        await reach(target)
    _emptied(folder)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        stop.set()
        for number in ENDS:
            loop.remove_signal_handler(number)  # a user who presses Ctrl-C twice does not want to wait

    for number in ENDS:
        loop.add_signal_handler(number, interrupted)
    columns = Columns(folder, about.warmup_s)
    to: Recorder = KeptAnswers(columns, folder) if plan.keeps else columns
    if plan.keeps:
        console(stderr=True).print(f"the text of answers goes to {folder / ANSWERS}, which only you may read")
    try:
        with Progress(to, console(stderr=True), traffic.planned_s) as shown:
            played = await play(chain([first], arrivals), target, shown, plan, show=shown.show, stop=stop)
    finally:
        columns.close()
        if isinstance(to, KeptAnswers):
            to.close()
    played.empty_rows = traffic.left_out.rows
    if wrong:
        played.interrupted, played.wrong_row = True, str(wrong[0])
    write_run(folder, about, played, columns)
    return played
