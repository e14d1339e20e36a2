"""Texts of the demo: the first request, the addresses, and commands to try."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from loadtests.first_request import Answer
from loadtests.terminal.screen import short

QUESTION = {"model": "default", "stream": True, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
LONG_WORDS = 20_000
DEAD_S = 20
OVERLOAD = "--workload climb"
LONG_PROMPT = f'{{"model": "default", "prompt": "word " * {LONG_WORDS}, "max_tokens": 20}}'


@dataclass(frozen=True, slots=True)
class Served:
    """URLs of the started processes."""

    api: str
    admin: str
    replicas: tuple[str, ...]
    ordinary: tuple[str, ...]
    """The replicas for ordinary prompts."""


def show_answer(out: Console, answer: Answer) -> None:
    """A summary of the first request."""
    _head(out, "One streamed request went through:")
    _fact(out, "pool", answer.pool)
    _fact(out, "replica", answer.replica)
    _fact(out, "TTFT", f"{answer.ttft_s * 1e3:.0f} ms", "from the request to the first token")
    _fact(out, "TPOT", f"{answer.tpot_s * 1e3:.1f} ms", "for each token after it")
    _fact(out, "e2e", f"{answer.e2e_s:.2f} s", "from the request to the end of the answer")
    _fact(out, "tokens", f"{answer.prompt_tokens} in, {answer.output_tokens} out")


def show_commands(out: Console, served: Served, policy_path: Path) -> None:
    """Commands to try."""
    api, admin = served.api, served.admin
    json_body = "-H 'content-type: application/json' -d"
    _head(out, "Try it, streamed:")
    out.print(Text(f"curl -N {api}/v1/chat/completions {json_body} '{json.dumps(QUESTION)}'"))
    _head(out, f"A prompt of {LONG_WORDS:,} words goes to the long pool (x-tailgate-pool says so):")
    python = f"python3 -c 'import json; print(json.dumps({LONG_PROMPT}))'"
    out.print(Text(f"{python} | curl -s -D - -o /dev/null {api}/v1/completions {json_body} @-"))
    _head(out, f"A replica that is dead for {DEAD_S} seconds gets no requests (see the console):")
    out.print(Text(f'curl {served.replicas[0]}/emulator/faults -d \'{{"fault": "dead", "for_s": {DEAD_S}}}\''))
    _head(out, "Send half to twice the load that it can serve, for two minutes, and read the report:")
    out.print(Text(overload(api, policy_path)))
    _head(out, "Look inside:")
    _fact(out, "admin", f"{admin}/", "the console, in a browser")
    _fact(out, "state", f"{admin}/admin/state")
    _fact(out, "metrics", f"{admin}/metrics")
    _fact(out, "policy", short(policy_path), "edit it while this runs: it is read again on every save")
    _head(out, "Serving until Ctrl-C.")


def overload(api: str, policy_path: Path) -> str:
    """The line that overloads the demo."""
    beside = Path(sys.executable).with_name("tailgate")
    command = "tailgate" if shutil.which("tailgate") == str(beside) else short(beside)
    return f"{command} load run --target {api} --policy {short(policy_path)} {OVERLOAD}"


def _head(out: Console, text: str) -> None:
    out.print(Text(f"\n{text}", style="bold"))


def _fact(out: Console, name: str, value: str, note: str = "") -> None:
    line = Text.assemble((f"  {name:<9}", "cyan"), f"{value:<9}" if note else value)
    out.print(line.append(f"  {note}", style="dim") if note else line)
