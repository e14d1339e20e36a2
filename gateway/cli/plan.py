"""`tailgate plan`: computes how many replicas a load needs."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.output import console, exits, print_json, refuse_unused
from gateway.cli.plan_tables import print_knee, print_plan
from gateway.cli.quantities import WarmupOption, per_s, seconds
from gateway.cli.traffic import (
    DurationOption,
    FleetOption,
    JobsOption,
    MixOption,
    ModelOption,
    SeedsOption,
    TraceOption,
    WorkloadOption,
    loaded_policy,
    progress,
    source_of,
    workload_of,
)
from gateway.core.policy import Policy
from gateway.plan.knee import Knee, Search
from gateway.plan.sizing import Load, plan
from gateway.plan.terms import Terms, above_0, share
from gateway.sim.engine.fleet import fleet_of
from gateway.sim.engine.profiles import Profile
from gateway.sim.run.options import Options

OF_SEARCHES = ("workload", "trace", "fleet", "target", "seeds", "duration", "warmup", "mix", "model", "jobs")
OF_ARITHMETIC = ("latency", "slots", "per_replica", "utilization", "p99_wait", "availability")


def plan_command(
    context: typer.Context,
    rate: Annotated[
        float | None,
        typer.Option(
            parser=per_s(),
            metavar="PER_S",
            show_default=False,
            help="Requests per second; with --policy the workload's own unless given.",
        ),
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(
            parser=seconds(),
            metavar="S",
            show_default=False,
            help="Mean seconds that a request holds a slot: its e2e without queueing.",
        ),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(metavar="N", show_default=False, help="Requests that one replica works on at once.")
    ] = None,
    per_replica: Annotated[
        float | None,
        typer.Option(
            parser=per_s(), metavar="PER_S", show_default=False, help="Requests per second that one replica carries."
        ),
    ] = None,
    utilization: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Target utilization of replicas at that rate; 0.7 leaves room for bursts."),
    ] = 1.0,
    p99_wait: Annotated[
        float | None,
        typer.Option(
            parser=seconds(),
            metavar="S",
            show_default=False,
            help="Seconds within which 99% of the requests must get a slot.",
        ),
    ] = None,
    availability: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", show_default=False, help="Share of the time in which a replica is up, such as 0.999."
        ),
    ] = None,
    spare: Annotated[int, typer.Option(metavar="N", help="Extra replicas beyond the needed ones.")] = 0,
    price: Annotated[
        str | None,
        typer.Option(
            metavar="MONEY", show_default=False, help="Price of a replica per hour; or by pool: short=3,long=8."
        ),
    ] = None,
    output_tokens: Annotated[
        float | None, typer.Option(metavar="N", show_default=False, help="Mean tokens of an answer.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Simulate this policy, with more and fewer replicas."),
    ] = None,
    workload: WorkloadOption = None,
    trace: TraceOption = None,
    target: Annotated[float, typer.Option(metavar="SHARE", help="With --policy: the wanted goodput.")] = 0.99,
    fleet: FleetOption = "default",
    seeds: SeedsOption = 3,
    duration: DurationOption = None,
    warmup: WarmupOption = 10.0,
    mix: MixOption = None,
    model: ModelOption = None,
    jobs: JobsOption = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Work out how many replicas a load needs, how long requests wait, and what it costs.

    By Little's law, in flight = rate x latency, and each replica has --slots:

    `tailgate plan --rate 9000 --latency 0.12 --slots 40 --utilization 0.7 --spare 1 --price 3`

    Or by the measured rate of one replica:

    `tailgate plan --rate 9000 --per-replica 450`

    Or simulated: the fewest replicas with which this policy reaches the wanted goodput on this traffic, with all up and
    with one lost. It also finds the highest rate at which these replicas still reach it.

    `tailgate plan --policy policies/chat-with-tiers.yaml --workload chat --rate 40 --target 0.99`
    """
    if policy is None:
        refuse_unused(context, OF_SEARCHES, "is for simulations: give --policy, too")
    else:
        refuse_unused(context, OF_ARITHMETIC, "is of no use with --policy")
    with exits(2, ValueError):
        terms = _terms(spare, price, output_tokens)
        if policy is not None:
            above_0("--rate", rate, "requests per second, such as 40")
            share("--target", target, "0.99 for 99% of the requests")
            source, loaded = source_of(workload, trace), loaded_policy(policy)
            terms.check_pools(loaded.pools)
            search = Search(
                policy=loaded,
                workload=workload_of(source, loaded, mix, model, rate, duration),
                profiles=_by_pool(fleet, loaded),
                target=target,
                seeds=tuple(range(1, seeds + 1)),
                options=Options(duration_s=math.inf if duration is None else duration, warmup_s=warmup),
                jobs=jobs,
            )
            with progress(None) as search.on_run:
                found = search.run()
            _print_knee(found, terms, as_json)
            return
        if rate is None:
            raise ValueError("give the requests per second with --rate, or the traffic with --policy and --workload")
        load = Load(rate, latency, slots, per_replica, utilization, p99_wait, availability, terms)
        worked_out = plan(load)
    if as_json:
        print_json(asdict(worked_out))
    else:
        print_plan(worked_out, console())


def _terms(spare: int, price: str | None, output_tokens: float | None) -> Terms:
    """The terms, with one price or with prices by pool. Raises ValueError."""
    if price is None:
        return Terms(spare, None, output_tokens)
    if "=" not in price:
        return Terms(spare, _money(price), output_tokens)
    parts = [part.strip().partition("=") for part in price.split(",")]
    by_pool = {pool: _money(money) for pool, _, money in parts}
    if len(by_pool) < len(parts):
        raise ValueError(f"--price {price}: a pool is there twice: give each pool one price")
    return Terms(spare, None, output_tokens, by_pool)


def _money(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--price: {text!r} is not a number: give the price of a replica per hour, such as 3, or by pool, such as "
            "short=3,long=8"
        ) from None


def _by_pool(fleet: str, policy: Policy) -> dict[str, Profile]:
    """The profiles of --fleet, by pool. Raises ValueError if --fleet names something that is not a pool."""
    profiles = fleet_of(fleet, policy)
    if strangers := [name for name in profiles if name not in policy.pools]:
        raise ValueError(f"--fleet names {', '.join(strangers)}: name pools, since a plan counts their replicas")
    return profiles


def _print_knee(found: Knee, terms: Terms, as_json: bool) -> None:
    replicas = found.needed.total + terms.spare
    cost = terms.cost(found.needed.replicas, found.needed.rate_per_s, found.needed.output_tokens)
    if as_json:
        counts = {"replicas": replicas, "replicas_needed": found.needed.total, "spare": terms.spare}
        print_json({**counts, "cost": cost and asdict(cost), **asdict(found)})
    else:
        print_knee(found, terms.spare, cost, console())
