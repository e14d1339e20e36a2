"""A workload in one line of the command line, such as `prompt_tokens=500,output_tokens=100,cv=1`."""

from __future__ import annotations

from pathlib import Path

from gateway.policy.errors import among
from gateway.sim.workload.traces import Mix

FIELDS = ("prompt_tokens", "output_tokens", "cv", "streamed", "tenants")
DEFAULT_RATE = 10.0
DEFAULT_DURATION_S = 60.0


def is_line(source: str) -> bool:
    """Whether the argument of --workload is a line, and not a name or a file."""
    return "=" in source and not Path(source).exists()


def written(line: str, mix: Mix) -> str:
    """The text of an equivalent workload file. Raises ValueError that says what is wrong."""
    said = {"prompt_tokens": "500", "output_tokens": "100"}
    for part in line.split(","):
        name, _, value = part.strip().partition("=")
        if not (name and value):
            raise ValueError(f"--workload {line}: {part.strip()!r}: each part is NAME=VALUE, of {', '.join(FIELDS)}")
        if name not in FIELDS:
            raise ValueError(f"--workload {line}: {name} is unknown: {among(name, FIELDS)}")
        said[name] = value
    total = sum(part for _, part in mix.tiers)
    streamed = f", streamed: {said['streamed']}" if "streamed" in said else ""
    tenants = said.get("tenants", mix.tenants)
    lines = [
        f"  {tier}: {{share: {100 * part / total:.6g}%, tenants: {tenants}{streamed}}}" for tier, part in mix.tiers
    ]
    return (
        "apiVersion: tailgate/v1\nkind: Workload\n"
        f"rate: {DEFAULT_RATE:g}/s\nduration: {DEFAULT_DURATION_S:g}s\nmodel: {mix.model}\n"
        f"arrivals: {{cv: {said.get('cv', '1')}}}\n"
        f"prompt_tokens: {said['prompt_tokens']}\noutput_tokens: {said['output_tokens']}\n"
        + "\n".join(["tiers:", *lines, ""])
    )
