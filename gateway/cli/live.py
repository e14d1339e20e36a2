"""`tailgate explain --live`: what a gateway that runs would do with a request now, and from which forecast."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from rich.console import Console
from rich.table import Table

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 20


class Unanswered(Exception):
    """The gateway could not be asked, or did not like the question; the message says which."""


def ask_gateway(url: str, question: dict[str, Any]) -> dict[str, Any]:
    """The answer of the admin port at `url`. Raises Unanswered."""
    asked = {name: value for name, value in question.items() if value is not None}
    address = f"{url.rstrip('/')}/admin/explain"
    if not address.startswith(("http://", "https://")):
        raise Unanswered(f"{url} is no URL of an admin port, such as http://127.0.0.1:9090")
    request = urllib.request.Request(address, json.dumps(asked).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.loads(answer.read(MAX_ANSWER_BYTES))
            return found
    except urllib.error.HTTPError as error:
        raise Unanswered(f"{address}: {_detail(error.read(MAX_ANSWER_BYTES), error.code)}") from None
    except (OSError, ValueError) as error:
        raise Unanswered(f"{address}: {error}: is this the admin port of a gateway that runs?") from None


def _detail(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"answered {status}"


def show(found: dict[str, Any], out: Console) -> None:
    """Print what was answered."""
    if "verdict" not in found:
        out.print(f"[red]refused[/red]    {found['why']}  [dim]{found.get('detail', '')}[/dim]")
        return
    best, runner_up = found["best"], found["runner_up"]
    place = f" to {best['replica']}" if best["replica"] else f" behind {found['ahead']} others"
    colour = "red" if found["verdict"] == "refused" else "cyan"
    where = "" if found["verdict"] == "refused" else place
    out.print(f"[{colour}]{found['verdict']}{where}[/{colour}]  [dim]({found['why']})[/dim]")
    out.print(
        f"[cyan]threshold[/cyan]  {found['threshold']:.2f}  [dim](admission {found['mode']}, "
        f"error budget left {found['budget_left']:.0%}, forecast {found['trust']})[/dim]"
    )
    rate = "not known yet" if found["drain_rate"] is None else f"{found['drain_rate']:.1f} requests/s"
    out.print(
        f"[cyan]pool[/cyan]       {found['pool']}  [dim]({found['ahead']} ahead, drains {rate}, "
        f"{found['higher_share']:.0%} of that for more urgent tiers)[/dim]"
    )
    out.print(
        f"[cyan]request[/cyan]    {found['prompt_tokens']} prompt tokens, at most {found['max_tokens']} of answer"
    )
    table = Table(box=None, pad_edge=False)
    for head in ("", "at", "P(breach)", "wait", "TTFT", "TPOT", "e2e", "in flight", "unread"):
        table.add_column(head, justify="left" if head in ("", "at") else "right")
    for label, at in (("best", best), ("runner-up", runner_up)):
        if at is not None:
            times = [_time(at[name]) for name in ("wait_s", "ttft_s", "tpot_s", "e2e_s")]
            name = at["replica"] or "waiting room"
            table.add_row(
                label, name, f"{at['breach']:.3f}", *times, str(at["in_flight"]), str(at["unprefilled_tokens"])
            )
    out.print(table)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1.0 else f"{seconds:.2f} s"
