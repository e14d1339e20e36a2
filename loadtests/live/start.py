"""Starts emulated replicas and gateways as processes, and waits until they are ready."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtests import ROOT
from loadtests.children import Child, Children

START_S = 60.0
REPLICA_LISTENS = r"^(http://[\w.:]+)"
GATEWAY_LISTENS = r"API on (http://[\w.:]+), admin on (http://[\w.:]+)"


class Broken(Exception):
    """A process did not start, or ended. The text has its output."""


def from_checkout(module: str, *options: str, given: Sequence[str] = ()) -> list[str]:
    """The command line of a module of this checkout, independent of the working directory; `given` are `NAME=value`."""
    return ["env", "-u", "PYTHONSAFEPATH", f"PYTHONPATH={ROOT}", *given, sys.executable, "-m", module, *options]


def gateway(policy: Path, baseline: str | None = None, given: Sequence[str] = ()) -> list[str]:
    """The command line of the gateway on free ports, or of a baseline of the simulator in its place."""
    if baseline is not None:
        options = ("--policy", str(policy), "--baseline", baseline)
        # A compiled driver takes no other class as its controller.
        return from_checkout("loadtests.live.gateway", *options, given=("TAILGATE_PURE=1", *given))
    ports = ("--port", "0", "--admin-port", "0", "--drain-deadline", "0")
    return from_checkout("gateway", "serve", "--policy", str(policy), *ports, given=given)


async def ready(child: Child, children: Children) -> re.Match[str]:
    """Wait for the line that a child prints when it is ready. Raises Broken if any process ends before that, or if it
    takes too long.
    """
    events: list[asyncio.Future[Any]] = [child.ready, children.died]
    await asyncio.wait(events, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
    if child.ready.done():
        return child.ready.result()
    if children.died.done():
        raise Broken(children.died.result().how_it_ended)
    raise Broken(f"{child.name} is not ready after {START_S:g} s")


async def replicas(
    children: Children, count: int, model: str, time_scale: float, *options: str
) -> tuple[list[str], Child]:
    """The URLs of `count` emulated replicas, and their process. Raises Broken.

    Answers have only the `min_tokens` of their request.
    """
    fleet = ("--replicas", f"{count}", "--model", model, "--port", "0", "--time-scale", f"{time_scale}", *options)
    lengths = ("--output-median", "1", "--output-sigma", "0", "--keep-alive", "600", "--keep-requests", "1")
    command = from_checkout("loadtests.emulator", *fleet, *lengths)
    child = await children.start("replicas", command, REPLICA_LISTENS, count)
    await ready(child, children)
    return [found[1] for found in child.found], child
