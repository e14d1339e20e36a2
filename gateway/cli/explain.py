"""`tailgate explain`: shows how a request would be treated, and why."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.cli.explanation import Asked, Explanation, Output, explain
from gateway.cli.output import console, exits, finite, print_json, refuse_unused
from gateway.cli.running.live import Unanswered, ask_gateway, show
from gateway.core.policy import QUOTAS, Limits
from gateway.core.pool_spec import Timeouts
from gateway.core.request import Endpoint
from gateway.core.slo import Slo
from gateway.policy import load
from gateway.policy.sections.units import write_seconds
from gateway.wire.errors.replies import status_of

OF_LIVE = ("tier", "model", "tenant", "prompt_tokens", "max_tokens", "stream")
OF_POLICY = ("policy", "key", "endpoint")


def _endpoint(path: str) -> Endpoint:
    if path not in tuple(Endpoint):
        raise typer.BadParameter(f"{path} is not a path that reaches a replica; known: {', '.join(Endpoint)}")
    return Endpoint(path)


def explain_command(
    context: typer.Context,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The policy file; not with --live.", show_default=False)
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="TAILGATE_KEY",
            show_default=False,
            help="The client's key. Better given as TAILGATE_KEY, which no shell history keeps.",
        ),
    ] = None,
    endpoint: Annotated[
        Endpoint, typer.Option(help="Path the request is sent to.", metavar="PATH", parser=_endpoint)
    ] = Endpoint.CHAT,
    live: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask a running gateway instead, at its admin port.", show_default=False),
    ] = None,
    tier: Annotated[str | None, typer.Option(help="With --live: the tier.", show_default="the default one")] = None,
    model: Annotated[str | None, typer.Option(help="With --live: the model.", show_default="the first one")] = None,
    tenant: Annotated[str | None, typer.Option(help="With --live: the tenant.", show_default="anonymous")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="With --live: tokens of the prompt.")] = 500,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="With --live: the requested output cap.", show_default="the tier's default"),
    ] = None,
    stream: Annotated[bool, typer.Option(help="With --live: whether the answer is streamed.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
) -> None:
    """Explain what a request would get: tier, pool, caps, timeouts and limits, and why.

    The request body is read from standard input:

    `tailgate explain --policy policy.yaml < request.json`

    Nothing is sent anywhere. The answer assumes an idle gateway whose replicas are all up. The prompt's length in
    tokens is estimated as by a gateway that has learned nothing yet. The exit status is 1 if the request would be
    refused.

    With --live the running gateway tells how it would treat a request of this tier and size now. It shows the forecast
    at the best replica and the runner-up, the threshold and the verdict. Nothing changes there:

    `tailgate explain --live http://127.0.0.1:9090 --tier free --prompt-tokens 2000`
    """
    if live is None:
        refuse_unused(context, OF_LIVE, "is for --live only")
    else:
        refuse_unused(context, OF_POLICY, "is of no use with --live")
    if live is not None:
        described = {"tier": tier, "model": model, "tenant": tenant, "max_tokens": max_tokens}
        _explain_live(live, {**described, "prompt_tokens": prompt_tokens, "stream": stream}, as_json)
        return
    if policy is None:
        console(stderr=True).print("give --policy FILE and a request on standard input, or --live URL of a gateway")
        raise typer.Exit(2)
    with exits(2):
        loaded = load(policy)
    source = context.get_parameter_source("key")
    is_ambient = source is not None and source.name == "ENVIRONMENT"
    explanation = explain(loaded, endpoint, key, sys.stdin.buffer.read(), key_is_ambient=is_ambient)
    if as_json:
        print_json(finite(asdict(explanation)))
    else:
        _print(explanation, console())
    if explanation.refusal is not None:
        raise typer.Exit(1)


def _explain_live(url: str, question: dict[str, object], as_json: bool) -> None:
    try:
        found = ask_gateway(url, question)
    except Unanswered as error:
        console(stderr=True).print(str(error), markup=False)
        raise typer.Exit(2) from None
    if as_json:
        print_json(found)
    else:
        show(found, console())
        if question["tenant"] is None:
            console().print("for a client without a key; with --tenant NAME, as one of its requests", style="dim")
    if found.get("verdict", "refused") == "refused":
        raise typer.Exit(1)


def _print(found: Explanation, out: Console) -> None:
    if found.caller is not None:
        _line(out, "tenant", found.caller.tenant, found.caller.why)
        _line(out, "tier", found.caller.tier)
    if found.asked is not None:
        _asked(found.asked, out)
    for pool in found.pools:
        mark = "goes here" if pool.chosen else "fits" if pool.fits else "does not fit"
        _line(out, "pool", f"{pool.name}: {mark}", pool.why)
    if found.output is not None:
        _output(found.output, out)
    if found.timeouts is not None:
        _line(out, "timeouts", _timeouts(found.timeouts))
    if found.limits is not None:
        reserved = found.reserved_tokens
        _line(out, "limits", _limits(found.limits), f"this request reserves {reserved} tokens" if reserved else "")
    if found.slo is not None:
        _line(out, "slo", _slo(found.slo))
    if found.refusal is not None:
        _line(out, "refused", f"{status_of(found.refusal.why)} {found.refusal.why}", found.refusal.detail, "red")


def _asked(asked: Asked, out: Console) -> None:
    _line(out, "model", asked.model, asked.model_why)
    if asked.upstream_model != asked.model:
        _line(out, "", f"the replicas know it as {asked.upstream_model}")
    low, high = asked.prompt_tokens_low, asked.prompt_tokens_high
    tokens = f"{low} tokens" if low == high else f"{low} to {high} tokens"
    _line(out, "prompt", f"{asked.prompt_bytes} bytes, {tokens}", asked.prompt_why)
    _line(out, "answer", "streamed" if asked.stream else "in one piece")


def _output(output: Output, out: Console) -> None:
    asked = "nothing" if output.asked is None else output.asked
    times = f" for each of {output.choices} choices" if output.choices > 1 else ""
    _line(out, "max tokens", f"asked {asked}, granted {output.granted}{times}", output.why)
    if output.changed:
        _line(out, "changed", ", ".join(output.changed), "clamped, or not sent to the replica")


def _timeouts(timeouts: Timeouts) -> str:
    phases = asdict(timeouts).items()
    return ", ".join(f"{name.removesuffix('_s')} {write_seconds(limit_s)}" for name, limit_s in phases)


def _limits(limits: Limits) -> str:
    parts = []
    if limits.requests_per_min is not None:
        parts.append(f"{limits.requests_per_min:g} requests/min")
    if limits.tokens_per_min is not None:
        parts.append(f"{limits.tokens_per_min:g} tokens/min")
    parts += [f"{quota.amount:g} {QUOTAS[quota.limit][0].value}/{quota.period}" for quota in limits.quotas]
    if limits.concurrency is not None:
        parts.append(f"{limits.concurrency} at the same time")
    return ", ".join(parts) or "none"


def _slo(slo: Slo) -> str:
    parts = [
        f"{metric.value} {objective.percentile} {write_seconds(objective.threshold_s)}"
        for metric, objective in slo.objectives()
    ]
    if slo.e2e_up_to_tokens is not None:
        parts.append(f"e2e for answers up to {slo.e2e_up_to_tokens} tokens")
    return ", ".join(parts) or "none"


def _line(out: Console, label: str, text: str, why: str = "", style: str = "cyan") -> None:
    reason = f"  [dim]({_escaped(why)})[/dim]" if why else ""
    out.print(f"[{style}]{label:<11}[/{style}]{_escaped(text)}{reason}", markup=True)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
