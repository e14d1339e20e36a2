"""`tailgate drain` and `tailgate undrain`: stop new requests to a replica, or let it serve again."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gateway.cli.output import console, counted
from gateway.cli.quantities import seconds
from gateway.cli.running.live import ADMIN, Admin, Unanswered, ask_admin

POLL_S = 0.5

Replica = Annotated[
    str, typer.Argument(metavar="REPLICA", help="Name of the replica, as in the policy and in metrics.")
]
Token = Annotated[
    str,
    typer.Option(
        envvar="TAILGATE_ADMIN_TOKEN",
        show_default=False,
        help="The admin token. Better given as TAILGATE_ADMIN_TOKEN, which no shell history keeps.",
    ),
]


def drain_command(
    replica: Replica,
    admin: Admin = ADMIN,
    token: Token = "",
    wait: Annotated[
        float,
        typer.Option(
            parser=seconds(0.0), metavar="S", help="Longest time to wait for its requests to finish, in seconds."
        ),
    ] = 0.0,
) -> None:
    """Send a replica no new requests: its running requests finish, waiting ones go elsewhere.

    The name of a server means all its data-parallel ranks. It stays drained, over reloads of the policy, until
    `tailgate undrain` or a restart of the gateway. Tell every gateway in front of the replica. The exit status is 1 if
    requests are still under way there after --wait.

    `tailgate drain gpu-1 --wait 600 && systemctl restart vllm@1 && tailgate undrain gpu-1`
    """
    _tell("drain", replica, admin, token)
    until = time.monotonic() + wait
    while wait and (left := _in_flight(replica, admin)):
        if time.monotonic() >= until:
            console(stderr=True).print(f"{counted(left, 'request')} still under way at {replica}")
            raise typer.Exit(1)
        time.sleep(POLL_S)


def undrain_command(replica: Replica, admin: Admin = ADMIN, token: Token = "") -> None:
    """Let a drained replica serve again, by slow start."""
    _tell("undrain", replica, admin, token)


def _tell(what: str, replica: str, admin: str, token: str) -> None:
    console().print(str(_asked(admin, what, {"replica": replica}, token)["message"]))


def _in_flight(replica: str, admin: str) -> int:
    pools = _asked(admin, "state", None)["pools"]
    return sum(
        int(r["in_flight"])
        for pool in pools
        for r in pool["replicas"]
        if replica in (r["name"], r["name"].partition("#")[0])
    )


def _asked(admin: str, what: str, question: dict[str, Any] | None, token: str = "") -> dict[str, Any]:
    try:
        return ask_admin(admin, what, question, token)
    except Unanswered as error:
        console(stderr=True).print(str(error))
        raise typer.Exit(2) from None
