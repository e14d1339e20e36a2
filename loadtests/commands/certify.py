"""`tailgate load certify`: does a target keep its promises at a rate?"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import uvloop

from gateway.cli.output import console, exits
from gateway.cli.quantities import finite, seconds
from loadtests.commands.options import (
    AdminOption,
    ExtraOption,
    GoodputOption,
    KeyOption,
    MaxLateOption,
    MixOption,
    ModelOption,
    PolicyOption,
    PromptsOption,
    SeedOption,
    TargetOption,
    WorkloadOption,
)
from loadtests.commands.verdicts import WRONG, Judged, Options, in_words, print_counted, told
from loadtests.terminal.written import check_writable, writing
from loadtests.verdict.gateway_counts import counted, differs
from loadtests.verdict.promises import Judgement, Verdict
from loadtests.verdict.sequential import Bounds
from loadtests.verdict.step import CERTIFY_WRONG, Step
from loadtests.verdict.trial import Part

FORMAT, VERSION = "tailgate-certificate", 1
STATUS = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.UNDECIDED: 4}
FILE = "certificate.json"


def certify_command(
    targets: TargetOption,
    policy: PolicyOption,
    at: Annotated[float, typer.Option("--at", min=1e-3, callback=finite, metavar="RATE", help="Requests per second.")],
    workload: WorkloadOption = None,
    prompts: PromptsOption = None,
    mix: MixOption = None,
    key: KeyOption = None,
    model: ModelOption = None,
    extra: ExtraOption = None,
    goodput: GoodputOption = 0.99,
    budget: Annotated[
        float, typer.Option(parser=seconds(10.0), metavar="S", help="Longest time; the test ends once all is decided.")
    ] = 600.0,
    seed: SeedOption = 1,
    max_late: MaxLateOption = 10.0,
    admin: AdminOption = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="An earlier --out: fail if a promise is kept less now."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Write the verdicts as JUnit XML.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Write the verdicts as a Markdown table.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default=False, help="Folder for certificate.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print certificate.json.")] = False,
) -> None:
    """Does the target keep every percentile of the policy, and the goodput, at this rate?

    The test begins idle, and looks whether a promise breaks. Then the rate is pushed up for some seconds, and the test
    looks whether all promises are kept after that. It ends as soon as each is decided; at most one verdict in a hundred
    is wrong.

    `tailgate load certify --target http://127.0.0.1:8080 --policy policy.yaml --workload chat --at 20`

    Exit status 0: all are kept. 1: one is broken, or kept less than in the baseline. 2: wrong options, or no contact.
    3: the generator fell behind. 4: undecided within the budget. 130: stopped.
    """
    errors = console(stderr=True)
    for path, option, is_folder in ((out, "--out", True), (junit, "--junit", False), (markdown, "--markdown", False)):
        if path is not None:
            check_writable(path, option, folder=is_folder)
    with exits(2, *WRONG):
        before = {} if baseline is None else shares_of(baseline)
        options = Options(
            targets, policy, workload, prompts, mix, key or [], model, extra, goodput, seed, max_late / 1e3, admin
        )
        judged = Judged(options)
        found = uvloop.run(_certified(judged, at, budget))
    less = {one.promise.name for one in found.judgements if is_less(one, before)}
    document = as_document(found, less, judged.shares)
    if out is not None:
        with writing(out, "--out"):
            out.mkdir(parents=True, exist_ok=True)
            (out / FILE).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    for path, option, text in ((junit, "--junit", as_junit(document)), (markdown, "--markdown", as_markdown(document))):
        if path is not None:
            with writing(path, option):
                path.write_text(text)
    if as_json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(found, less, judged.shares)
    if found.interrupted:
        raise typer.Exit(130)
    if not found.on_time:
        errors.print(
            f"Do not trust this: over 1% of the requests left more than {max_late:g} ms late. Lower the rate, give the "
            "generator a core, or accept more by --max-late",
            style="red",
        )
        raise typer.Exit(3)
    raise typer.Exit(1 if less else STATUS[found.verdict])


async def _certified(judged: Judged, at: float, budget_s: float) -> Step:
    errors = console(stderr=True)
    await judged.prepare(errors)
    return await judged.at(at, CERTIFY_WRONG, budget_s, errors)


def as_document(found: Step, less: set[str], shares: dict[str, float]) -> dict[str, Any]:
    """The certificate, as JSON has it. `shares`: goodput by tier, as the gateway counts it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "rate_per_s": found.rate_per_s,
        "seconds": found.seconds,
        "requests": found.sent,
        "trusted": found.on_time,
        "verdict": Verdict.FAIL.value if less else found.verdict.value,
        "recovered_in_s": found.recovery_s if found.part is Part.AFTER else None,
        "promises": [
            {
                "promise": one.promise.name,
                "share": one.promise.share,
                "verdict": one.verdict.value,
                "kept": None if one.kept is None else one.kept.share,
                "low": None if one.kept is None else one.kept.low,
                "high": None if one.kept is None else one.kept.high,
                "requests": one.requests,
                "misses": one.misses,
                "less_than_before": one.promise.name in less,
                "gateway_kept": counted(one, shares),
                "gateway_differs": differs(one, shares),
            }
            for one in found.judgements
        ],
    }


def shares_of(folder: Path) -> dict[str, float]:
    """By promise: lower bound of the share that an earlier certificate found to be kept. Raises ValueError."""
    try:
        document = orjson.loads((folder / FILE).read_bytes())
        if document["format"] != FORMAT:
            raise KeyError("format")
        return {one["promise"]: one["low"] for one in document["promises"] if one["low"] is not None}
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"--baseline {folder}: has no {FILE} of tailgate load certify --out") from None


def is_less(one: Judgement, before: dict[str, float]) -> bool:
    """Whether a promise is surely kept less than before."""
    low = before.get(one.promise.name)
    return low is not None and one.kept is not None and one.kept.high < low


def as_junit(document: dict[str, Any]) -> str:
    """One test case for each promise; an undecided one is an error."""
    tests = document["promises"]
    name = f"{document['rate_per_s']:g} requests/s"
    failed = sum(one["verdict"] == Verdict.FAIL.value or one["less_than_before"] for one in tests)
    undecided = sum(one["verdict"] == Verdict.UNDECIDED.value for one in tests)
    suite = ElementTree.Element(
        "testsuite", name=name, tests=f"{len(tests)}", failures=f"{failed}", errors=f"{undecided}"
    )
    for one in tests:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=one["promise"])
        if one["verdict"] == Verdict.FAIL.value or one["less_than_before"]:
            ElementTree.SubElement(case, "failure", message=_measured(one))
        elif one["verdict"] == Verdict.UNDECIDED.value:
            ElementTree.SubElement(case, "error", message=f"undecided: {_measured(one)}")
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def as_markdown(document: dict[str, Any]) -> str:
    """A table of the promises."""
    head = f"**{document['verdict']}** at {document['rate_per_s']:g} requests/s, {document['requests']:,} requests\n\n"
    rows = [
        f"| {one['promise']} | {_measured(one)} | {'less than before' if one['less_than_before'] else one['verdict']} |"
        for one in document["promises"]
    ]
    return head + "\n".join(["| promise | kept by | |", "|---|---|---|", *rows]) + "\n"


def _measured(one: dict[str, Any]) -> str:
    kept = None if one["kept"] is None else Bounds(one["kept"], one["low"], one["high"])
    measured = in_words(one["misses"], one["requests"], kept)
    if one["gateway_kept"] is None:
        return measured
    beyond = ", beyond the interval" if one["gateway_differs"] else ""
    return f"{measured}; the gateway counts {100 * one['gateway_kept']:.4g}%{beyond}"


def _print(found: Step, less: set[str], shares: dict[str, float]) -> None:
    out = console()
    colours = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.UNDECIDED: "yellow"}
    for one in found.judgements:
        word = "less than before" if one.promise.name in less else one.verdict.value
        out.print(f"{word:9} {told(one)}", style="red" if one.promise.name in less else colours[one.verdict])
        print_counted(one, shares, out, " " * 10)
