"""Asks a running gateway at its admin port; for `tailgate explain --live`, shows its decision on a request, with the
forecast.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.core.admission.wording import probability
from gateway.observe.requests.story import spoken
from gateway.wire.http.lines import can_be_token

Admin = Annotated[str, typer.Option(metavar="URL", help="Admin port of the gateway.")]
ADMIN = "http://127.0.0.1:9090"
TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 26
NO_PAGE = "Not Found"
"""The error text of a server that has no page of this name."""
_HINT = ": is this the admin port of a running gateway?"


class Unanswered(Exception):
    """The gateway could not be reached, or refused the question. The message says what happened.

    `status`: HTTP status of its answer; 0 without one.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def ask_gateway(url: str, question: dict[str, Any]) -> dict[str, Any]:
    """The admin port's explanation of a request, from `url`. Raises Unanswered."""
    return ask_admin(url, "explain", {name: value for name, value in question.items() if value is not None})


def ask_admin(url: str, what: str, question: dict[str, Any] | None, token: str = "") -> dict[str, Any]:
    """The answer of the admin port at `url` to a POST with `question`, or to a GET without a question. Raises
    Unanswered.
    """
    address = f"{url.rstrip('/')}/admin/{what}"
    if not address.startswith(("http://", "https://")):
        raise Unanswered(f"{url} is not the URL of an admin port, such as http://127.0.0.1:9090")
    if not can_be_token(token):
        # This error does not show the token, as the error of the HTTP client would.
        raise Unanswered("TAILGATE_ADMIN_TOKEN has a line end, a space or another character that no header can carry")
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(address, None if question is None else json.dumps(question).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.loads(answer.read(MAX_ANSWER_BYTES))
            return found
    except urllib.error.HTTPError as error:
        detail = _detail(error.read(MAX_ANSWER_BYTES), error.code)
        hint = _HINT if error.code == 405 or detail in (NO_PAGE, _answered(404)) else ""
        raise Unanswered(f"{address}: {detail}{hint}", error.code) from None
    except urllib.error.URLError as error:
        raise Unanswered(f"{address}: {error.reason}{_HINT}") from None
    except (OSError, ValueError) as error:
        raise Unanswered(f"{address}: {error}{_HINT}") from None


def _detail(body: bytes, status: int) -> str:
    try:
        said = json.loads(body)
        return str(said["message"] if "message" in said else said["detail"])
    except (ValueError, KeyError, TypeError):
        return _answered(status)


def _answered(status: int) -> str:
    return f"answered {status}"


def show(found: dict[str, Any], out: Console) -> None:
    """Print the gateway's explanation."""
    if "verdict" not in found:
        _line(out, "refused", "", f"{found['why']}  {found.get('detail', '')}".rstrip(), "red")
        return
    best, refused = found["best"], found["verdict"] == "refused"
    others = "1 other" if found["ahead"] == 1 else f"{found['ahead']} others"
    place = f" to {best['replica']}" if best["replica"] else f" behind {others}"
    _line(out, found["verdict"], "" if refused else place, f"({found['why']})", "red" if refused else "cyan")
    if found["constraint"]:
        _line(out, "decided by", f" {found['constraint']}")
    _line(
        out,
        "threshold",
        f"  {found['threshold']:.2f}",
        f"(admission {found['mode']}, forecast {found['trust']})",
    )
    rate = "not known yet" if found["drain_rate"] is None else f"{found['drain_rate']:.1f} requests/s"
    share = f"{found['higher_share']:.0%} of that for more urgent tiers"
    if found["own_rate"] is not None:
        share += f", {found['own_rate']:.1f}/s of its tier were sent from the queue"
    _line(out, "pool", f"       {found['pool']}", f"({found['ahead']} ahead, drains {rate}, {share})")
    _line(out, "request", f"    {found['prompt_tokens']} prompt tokens, at most {found['max_tokens']} of answer")
    for one in found.get("left_out", ()):
        _line(out, one["state"], f"  {one['replica']}", f"({one['why']})" if one["why"] else "")
    out.print(_forecasts(best, found["runner_up"]))
    if found["runner_up"] is not None:
        out.print("best: where it would be sent; runner-up: the next by unread prompt tokens", style="dim")


def _line(out: Console, label: str, text: str, why: str = "", style: str = "cyan") -> None:
    reason = f"  [dim]{escape(why)}[/dim]" if why else ""
    out.print(f"[{style}]{escape(label)}[/{style}]{escape(text)}{reason}", markup=True)


def _forecasts(best: dict[str, Any], runner_up: dict[str, Any] | None) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("", "at", "P(breach)", "wait", "TTFT", "TPOT", "e2e", "in flight", "unread"):
        # the name of a replica is wrapped, not cut: names often differ in their last characters
        table.add_column(head, justify="left" if head in ("", "at") else "right", overflow="fold")
    for label, at in (("best", best), ("runner-up", runner_up)):
        if at is not None:
            times = [spoken(at[name]) for name in ("wait_s", "ttft_s", "tpot_s", "e2e_s")]
            name = at["replica"] or "queue"
            table.add_row(
                label, name, probability(at["breach"], 3), *times, str(at["in_flight"]), str(at["unprefilled_tokens"])
            )
    return table
