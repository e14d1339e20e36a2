"""`tailgate demo`: emulated replicas, the gateway in front of them, and one request that shows that it works."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import typer
from rich.console import Console
from rich.text import Text

from gateway.core.policy import Policy
from gateway.core.pool_spec import PoolSpec, ReplicaSpec
from gateway.policy import PolicyErrors, load
from gateway.policy.sections.hosts import is_loopback
from gateway.sim.engine.profiles import PROFILES
from loadtests import CHECKOUT
from loadtests.children import Children
from loadtests.demo_overload import Failed, overload_both
from loadtests.demo_text import QUESTION, Served, show_answer, show_commands
from loadtests.first_request import NoAnswer, ask
from loadtests.live.start import GATEWAY_LISTENS, REPLICA_LISTENS
from loadtests.ports import ADMIN_PORT, HOST, MAX, POLICY, PORT, gateway_ports, taken
from loadtests.terminal.screen import short
from loadtests.terminal.written import FOLDER

START_S = 60.0
DRAIN_S = 5.0
INFO = " INFO "
"""In each line of the gateway's log that is no warning."""
ENGINES = ("short", "default", "long")  # from the shortest context to the longest
ANSWER_TOKENS = 100
EXTRA = "pip install 'tailgate[load]', or uvx --from 'tailgate[load]' tailgate demo --overload"


class Trouble(Exception):
    """Why the demo cannot go on, for its user."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything listens. Ports of the gateway; 0 is any free one. `free`: the replicas take free ports, too.

    `policy_path` is a copy, unless it is that of a checkout.
    """

    port: int
    admin_port: int
    free: bool
    policy_path: Path


# ---- what is started


async def start(children: Children, plan: Plan) -> Served:
    """Start all processes, and wait until they are ready."""
    policy = read_policy()
    replicas = [
        (spec, await children.start(spec.name, _replica_command(policy, pool, spec, plan.free), REPLICA_LISTENS))
        for pool, spec in _replicas(policy)
    ]
    urls = {spec.url: (await child.ready)[1] for spec, child in replicas}
    if plan.policy_path != POLICY:
        _write_policy(plan.policy_path, urls)
    gateway = await children.start("gateway", _gateway_command(plan), GATEWAY_LISTENS)
    api, admin = (await gateway.ready).groups()
    await _until_ready(admin)
    first = next(iter(policy.pools.values()))
    ordinary = tuple(urls[spec.url] for pool, spec in _replicas(policy) if pool is first)
    return Served(api, admin, tuple(urls.values()), ordinary)


def read_policy(path: Path = POLICY) -> Policy:
    """The policy of the demo. Raises Trouble if it is wrong, or if its replicas are on another machine."""
    try:
        policy = load(path)
    except PolicyErrors as errors:
        raise Trouble(str(errors)) from None
    for pool, spec in _replicas(policy):
        if not is_loopback(urlsplit(spec.url).hostname or ""):
            raise Trouble(
                f"{path.name}: pools.{pool.name}: {spec.url} is not on this machine; all replicas of the demo are "
                f"emulated. To serve your own: tailgate serve --policy {short(path)}"
            )
    return policy


def _replicas(policy: Policy) -> Iterator[tuple[PoolSpec, ReplicaSpec]]:
    """Pool and first rank of each server."""
    return ((pool, spec) for pool in policy.pools.values() for spec in pool.replicas if not spec.dp_rank)


def _replica_command(policy: Policy, pool: PoolSpec, spec: ReplicaSpec, free: bool) -> list[str]:
    model = next((m for m in policy.models.values() if pool.name in m.pools), next(iter(policy.models.values())))
    fits = [name for name in ENGINES if PROFILES[name].max_model_len >= (pool.max_prompt_tokens or 0)]
    return [
        *(sys.executable, "-m", "loadtests.emulator"),
        *("--port", "0" if free else str(_port_of(spec))),
        *("--profile", fits[0] if fits else ENGINES[-1]),
        *("--model", model.upstream or model.name),
        *("--dp", str(sum(other.url == spec.url for other in pool.replicas))),
    ]


def _gateway_command(plan: Plan) -> list[str]:
    return [
        *(sys.executable, "-m", "gateway", "serve"),
        *("--policy", str(plan.policy_path)),
        *("--host", HOST, "--port", str(plan.port)),
        *("--admin-host", HOST, "--admin-port", str(plan.admin_port)),
        *("--drain-deadline", str(DRAIN_S), "--log-level", "info"),
    ]


def _write_policy(path: Path, urls: dict[str, str]) -> None:
    path.write_text(re.sub(r"http://[\w.]+:\d+", lambda found: urls.get(found[0], found[0]), POLICY.read_text()))


def _port_of(spec: ReplicaSpec) -> int:
    port = urlsplit(spec.url).port
    assert port is not None, "the policy's URLs always have a port"
    return port


async def _until_ready(admin: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            if (await client.get(f"{admin}/readyz")).status_code == 200:
                return
            await asyncio.sleep(0.05)


def check_ports(plan: Plan) -> None:
    """Raises Trouble if ports are taken; the text names each and says what to do."""
    replicas = [] if plan.free else [_port_of(spec) for _, spec in _replicas(read_policy())]
    problems = taken(plan.port, plan.admin_port, replicas)
    if problems:
        raise Trouble(problems)


# ---- from start to end


async def run(plan: Plan, out: Console, overload_to: Path | None = None) -> int:
    """Run until a signal or an error. Returns the exit status. `overload_to`: the folder for an overload's report."""
    stop, loading = asyncio.Event(), asyncio.Event()

    def tell(name: str, line: str) -> None:
        if not (loading.is_set() and INFO in line):  # else the progress drowns in lines about refusals
            out.print(Text(f"{name:>8}  {line}", style="dim"))

    async with Children(tell) as children:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A user who presses Ctrl-C twice does not want to wait.
            asyncio.get_running_loop().add_signal_handler(
                number, lambda: children.kill() if stop.is_set() else stop.set()
            )
        showing = asyncio.create_task(_start_and_ask(children, plan, out))
        stopping = asyncio.create_task(stop.wait())
        try:
            await _first(showing, stopping, children.died)
            if showing.done():
                served = showing.result()
                if overload_to is not None:
                    loading.set()
                    both = asyncio.create_task(overload_both(children, served, plan.policy_path, overload_to, out))
                    await _first(both, stopping, children.died)
                    loading.clear()
                    if both.done():
                        both.result()
                    else:
                        both.cancel()
                        await asyncio.wait([both])
                if not stop.is_set() and not children.died.done():
                    show_commands(out, served, plan.policy_path)
                await _first(stopping, children.died)
            if not stop.is_set():
                raise Trouble(children.died.result().how_it_ended)
        except (Trouble, Failed, NoAnswer) as trouble:
            out.print(Text(str(trouble), style="red"))
            return 1
        finally:
            showing.cancel()
            stopping.cancel()
        out.print(f"\nEnding: requests under way have {DRAIN_S:.0f} s. Ctrl-C again ends at once.")
        return 0


async def _first(*events: asyncio.Future[Any]) -> None:
    await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)


async def _start_and_ask(children: Children, plan: Plan, out: Console) -> Served:
    check_ports(plan)
    with out.status("starting the replicas and the gateway"):
        try:
            async with asyncio.timeout(START_S):
                served = await start(children, plan)
                answer = await ask(served.api, {**QUESTION, "max_tokens": ANSWER_TOKENS})
        except TimeoutError:
            raise Trouble(f"not everything was ready within {START_S:.0f} s") from None
        except httpx.HTTPError as error:
            raise Trouble(f"the admin port of the gateway cannot be reached: {error!r}") from None
    show_answer(out, answer)
    return served


@contextmanager
def planned(port: int | None, admin_port: int | None, free: bool) -> Iterator[Plan]:
    """The options of the command line, as a plan. The plan owns the copy of the policy, if there is one."""
    with TemporaryDirectory(prefix="tailgate-") as folder:
        copied = free or not CHECKOUT
        yield Plan(*gateway_ports(port, admin_port, free), free, Path(folder) / POLICY.name if copied else POLICY)


app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def demo(
    port: Annotated[
        int | None, typer.Option(min=0, max=MAX, show_default=f"{PORT}", help="Port of the API; 0 is any free one.")
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(min=0, max=MAX, show_default=f"{ADMIN_PORT}", help="Port of metrics, state and console."),
    ] = None,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Take free ports, for the replicas too: the policy is then a copy.")
    ] = False,
    overload: Annotated[
        bool,
        typer.Option(
            "--overload",
            help="Overload it for two minutes, behind nginx too if that is installed, and open the report.",
        ),
    ] = False,
) -> None:
    """Try it: four emulated replicas, the gateway in front of them, and one request. Serves until Ctrl-C."""
    out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    if overload and find_spec("numpy") is None:
        out.print(Text(f"numpy is not installed, and --overload needs it: {EXTRA}", style="red"))
        raise typer.Exit(1)
    folder = FOLDER / f"overload-{datetime.now():%Y%m%d-%H%M%S}" if overload else None
    with planned(port, admin_port, free_ports) as plan:
        status = asyncio.run(run(plan, out, folder))
    raise typer.Exit(status)


if __name__ == "__main__":
    app(prog_name="python -m loadtests.demo")
