"""`tailgate load emulate`: emulated replicas, with faults that can be switched on."""

from __future__ import annotations

import typer

from loadtests.emulator.__main__ import main

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Options are those of the emulator, which reads them itself."""


def emulate_command(context: typer.Context) -> None:
    """Emulated vLLM replicas on consecutive ports: `tailgate load emulate --port 8101 --replicas 4`."""
    main(context.args)
