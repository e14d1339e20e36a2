"""The options that `find` and `certify` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.quantities import finite

TargetOption = Annotated[
    list[str], typer.Option("--target", metavar="URL", help="The gateway, or any server with an OpenAI API.")
]
PolicyOption = Annotated[Path, typer.Option(metavar="FILE", help="The policy with the promises.")]
WorkloadOption = Annotated[
    str | None, typer.Option(metavar="SPEC", show_default=False, help="Made-up traffic: a name, a file, or a line.")
]
PromptsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", show_default=False, help="Your own prompts, in random order.")
]
MixOption = Annotated[
    str | None, typer.Option(metavar="TIER=SHARE,...", show_default=False, help="Tiers for traffic that names none.")
]
KeyOption = Annotated[
    list[str] | None, typer.Option(metavar="[TIER=]KEY", show_default=False, help="An API key; may be repeated.")
]
ModelOption = Annotated[str | None, typer.Option(metavar="NAME", show_default=False, help="The model to ask for.")]
ExtraOption = Annotated[
    str | None, typer.Option(metavar="JSON", show_default=False, help="Fields to add to every body.")
]
GoodputOption = Annotated[
    float, typer.Option(min=0.01, max=0.9999, help="Share of the requests of each tier that has to be good.")
]
MaxLateOption = Annotated[
    float,
    typer.Option("--max-late", min=0.1, callback=finite, help="Largest accepted lateness of the generator, p99 in ms."),
]
AdminOption = Annotated[
    str | None,
    typer.Option(metavar="URL", show_default=False, help="Admin port: say what the gateway's own metrics count."),
]
SeedOption = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of arrivals, lengths and prompts.")]
