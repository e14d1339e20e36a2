"""`python -m loadtests COMMAND`: load tests of a live gateway, or of any server with an OpenAI API."""

from __future__ import annotations

import typer

from loadtests.children import end_by_sigterm
from loadtests.commands.calibrate import calibrate_command
from loadtests.commands.compare import compare_command
from loadtests.commands.convert import convert_command
from loadtests.commands.report import report_command
from loadtests.commands.run import run_command
from loadtests.commands.scenario import scenario_command

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Load tests that cannot lie: open loop, latency from when a request was due, goodput beside throughput.",
)
app.command("run")(run_command)
app.command("report")(report_command)
app.command("compare")(compare_command)
app.command("convert")(convert_command)
app.command("scenario")(scenario_command)
app.command("calibrate")(calibrate_command)

if __name__ == "__main__":
    end_by_sigterm()
    app(prog_name="python -m loadtests")
