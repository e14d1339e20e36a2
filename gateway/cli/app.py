"""The `tailgate` command and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli import key
from gateway.cli.added import AddedCommands
from gateway.cli.check import check
from gateway.cli.diff import diff_command
from gateway.cli.explain import explain_command
from gateway.cli.plan import plan_command
from gateway.cli.replay_journal import replay_journal
from gateway.cli.running.drain import drain_command, undrain_command
from gateway.cli.running.usage import usage_command
from gateway.cli.running.why import why_command
from gateway.cli.serve import serve
from gateway.cli.shipped import policy_command
from gateway.cli.simulate import simulate_command
from gateway.observe import build_info

# Local variables of a crash may contain keys, so tracebacks stay plain.
app = typer.Typer(
    name="tailgate",
    cls=AddedCommands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command()(check)
app.command("diff")(diff_command)
app.command("policy")(policy_command)
app.command("explain")(explain_command)
app.command("why")(why_command)
app.command("usage")(usage_command)
app.command("drain")(drain_command)
app.command("undrain")(undrain_command)
app.command("replay-journal")(replay_journal)
app.command("simulate")(simulate_command)
app.command("plan")(plan_command)
app.add_typer(key.app, name="key")


def _version(asked: bool) -> None:
    if asked:
        print(f"tailgate {build_info.release()} ({build_info.kind()})")
        raise typer.Exit


@app.callback()
def tailgate(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """An SLO-aware front door for LLM replicas: tiers, limits and routing behind the OpenAI and Anthropic APIs.

    For a first try: `tailgate demo`, or `tailgate serve --replica http://127.0.0.1:8000`. For more, write a policy
    file, check it by `tailgate check FILE`, and run `tailgate serve --policy FILE`.
    """
