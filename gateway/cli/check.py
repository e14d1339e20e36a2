"""`tailgate check`: checks policy files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.output import console, counted, error_line, print_json
from gateway.core.policy import Policy
from gateway.policy import PolicyErrors
from gateway.policy.load import load_noted

Noted = tuple[Policy, tuple[str, ...]]
"""A policy, and notes on it."""


def check(
    files: Annotated[list[Path], typer.Argument(help="Policy files.", metavar="FILE", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
) -> None:
    """Check policy files and list every error at once.

    Each error is one line, `file:line: field: what is wrong, what would be right`. The exit status is 1 if any file has
    an error. Variables such as ${VLLM_API_KEY} must be set, as for serving.
    """
    results = [(file, _checked(file)) for file in files]
    if as_json:
        print_json({"files": [_as_data(file, result) for file, result in results]})
    else:
        for file, result in results:
            _print(file, result)
    if any(isinstance(result, PolicyErrors) for _, result in results):
        raise typer.Exit(1)


def _checked(file: Path) -> Noted | PolicyErrors:
    try:
        return load_noted(file)
    except PolicyErrors as errors:
        return errors


def _print(file: Path, result: Noted | PolicyErrors) -> None:
    out = console()
    if isinstance(result, PolicyErrors):
        for error in result.errors:
            out.print(error_line(error))
        out.print(f"{file}: {counted(len(result.errors), 'error')}", style="red")
        return
    policy, notes = result
    out.print(f"{file}: ok: {_summary(policy)}", style="green")
    for note in notes:
        out.print(f"{file}: note: {note}", style="yellow")


def _summary(policy: Policy) -> str:
    replicas = sum(len(pool.replicas) for pool in policy.pools.values())
    found = " and those it finds" if any(pool.discovery for pool in policy.pools.values()) else ""
    tiers = ", ".join(f"{name} (default)" if name == policy.default_tier else name for name in policy.tiers)
    return ", ".join(
        (
            counted(len({model.name for model in policy.models.values()}), "model"),
            f"{counted(len(policy.pools), 'pool')} with {counted(replicas, 'replica')}{found}",
            f"{counted(len(policy.tiers), 'tier')}: {tiers}",
            counted(len(policy.keys), "key") if policy.keys else "no keys",
        )
    )


def _as_data(file: Path, result: Noted | PolicyErrors) -> dict[str, object]:
    if isinstance(result, PolicyErrors):
        return {"file": str(file), "ok": False, "errors": [asdict(error) for error in result.errors], "notes": []}
    policy, notes = result
    return {
        "file": str(file),
        "ok": True,
        "errors": [],
        "notes": list(notes),
        "digest": policy.digest,
        "models": sorted({model.name for model in policy.models.values()}),
        "pools": {pool.name: list(dict.fromkeys(spec.url for spec in pool.replicas)) for pool in policy.pools.values()},
        "tiers": list(policy.tiers),
        "default_tier": policy.default_tier,
        "keys": len(policy.keys),
    }
