"""`tailgate plan`: how many replicas does this load need?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gateway.cli.output import console, print_json
from gateway.cli.plan_tables import print_plan
from gateway.plan.sizing import Load, plan


def plan_command(
    rate: Annotated[float, typer.Option(metavar="PER_S", show_default=False, help="Requests per second.")],
    latency: Annotated[
        float | None,
        typer.Option(
            metavar="S", show_default=False, help="Seconds that a request holds a slot, in the mean: its e2e unqueued."
        ),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(metavar="N", show_default=False, help="Requests that one replica works on at once.")
    ] = None,
    per_replica: Annotated[
        float | None,
        typer.Option(metavar="PER_S", show_default=False, help="Requests per second that one replica carries."),
    ] = None,
    utilization: Annotated[
        float,
        typer.Option(metavar="SHARE", help="How full replicas shall be at that rate; 0.7 leaves room for bursts."),
    ] = 1.0,
    spare: Annotated[int, typer.Option(metavar="N", help="Replicas on top of those needed.")] = 0,
    p99_wait: Annotated[
        float | None,
        typer.Option(metavar="S", show_default=False, help="Seconds that 99% of the requests wait at most for a slot."),
    ] = None,
    price: Annotated[
        float | None, typer.Option(metavar="MONEY", show_default=False, help="What a replica costs per hour.")
    ] = None,
    output_tokens: Annotated[
        float | None, typer.Option(metavar="N", show_default=False, help="Tokens of an answer, in the mean.")
    ] = None,
    availability: Annotated[
        float | None,
        typer.Option(metavar="SHARE", show_default=False, help="Share of the time in which a replica is up, as 0.999."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Work out how many replicas a load needs, what requests wait, and what it costs.

    By Little's law, in flight = rate x latency, and each replica has so many slots:

    `tailgate plan --rate 9000 --latency 0.12 --slots 40 --utilization 0.7 --spare 1 --price 3`

    Or by the rate that one replica was measured to carry:

    `tailgate plan --rate 9000 --per-replica 450`
    """
    try:
        found = plan(
            Load(
                rate_per_s=rate,
                latency_s=latency,
                slots=slots,
                per_replica_per_s=per_replica,
                utilization=utilization,
                spare=spare,
                p99_wait_s=p99_wait,
                price_per_hour=price,
                output_tokens=output_tokens,
                availability=availability,
            )
        )
    except ValueError as error:
        console(stderr=True).print(str(error), style="red")
        raise typer.Exit(2) from None
    if as_json:
        print_json(asdict(found))
    else:
        print_plan(found, console())
