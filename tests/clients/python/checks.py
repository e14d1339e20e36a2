"""Shared by all programs of this folder: the gateway's address, and the printed form of outcomes."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

URL = os.environ["CLIENTS_URL"]
V1 = f"{URL}/v1"
MODEL = os.environ["CLIENTS_MODEL"]
KEY = os.environ["CLIENTS_KEY"]
LIMITED_KEY = os.environ["CLIENTS_LIMITED_KEY"]
SLOW_KEY = os.environ["CLIENTS_SLOW_KEY"]
"""Of a limit that lasts longer than an agent takes to start."""
OPEN_KEY = os.environ["CLIENTS_OPEN_KEY"]
"""Of a tier with pictures, and with log-probabilities of prompts."""
ADMIN = os.environ["CLIENTS_ADMIN"]
HELLO = "Hello there, here is an answer in a few words."
FAIL = "FAIL IN THE MIDDLE"
CITY = "Where is the capital of France?"
CALL = 'CALL get_weather {"city": "Paris"}'
SUNNY = "The tool said: sunny in Paris"
TRIES = 10
T = TypeVar("T")
TOO_HOT = 9.0  # a temperature or top_p that no API takes


def run(package: str, *checks: Callable[[], Any]) -> None:
    """Print the version of the package, then a line of JSON for each check: its name, and its error or null."""
    print(json.dumps({"version": version(package)}), flush=True)
    perform(*checks)


def perform(*checks: Callable[[], Any]) -> None:
    """Print a line of JSON for each check."""
    for check in checks:
        error = None
        try:
            outcome = check()
            if inspect.isawaitable(outcome):
                asyncio.run(outcome)
        except Exception:  # noqa: BLE001  the next check runs all the same
            error = traceback.format_exc()
        print(json.dumps({"check": check.__name__, "error": error}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # some clients leave threads behind that never end


def same(found: object, wanted: object) -> None:
    """An assertion whose error shows both sides."""
    assert found == wanted, f"{found!r} is not {wanted!r}"


def calling(tool: str, **arguments: object) -> str:
    """A prompt that makes the engine call a tool."""
    return f"CALL {tool} {json.dumps(arguments)}"


def weather(city: str) -> str:
    """The tool of the tests."""
    return f"sunny in {city}"


@contextmanager
def raises(kind: type[BaseException], status: int | None = None, of: str = "status_code") -> Iterator[None]:
    """Check that the block raises `kind`, with `status` in its attribute `of`."""
    try:
        yield
    except kind as error:
        if status is not None:
            same(getattr(error, of), status)
    else:
        raise AssertionError(f"nothing was raised, {kind.__name__} was due")


def refused() -> int:
    """Requests that the gateway has answered with 429 so far."""
    with urllib.request.urlopen(f"{ADMIN}/metrics") as answer:
        text = answer.read().decode()
    lines = re.findall(r'^tailgate_requests_total\{[^}]*outcome="quota"[^}]*\} (\S+)', text, re.MULTILINE)
    return int(sum(map(float, lines)))


def use_up_the_limit(key: str) -> None:
    """Send requests with this key until one is refused."""
    body = json.dumps({"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{V1}/chat/completions", body, headers)
    try:
        for _ in range(1000):
            urllib.request.urlopen(request).close()
    except urllib.error.HTTPError as error:
        same(error.code, 429)
    else:
        raise AssertionError("the limit was never reached")


def refused_then_served(call: Callable[[], T], key: str = LIMITED_KEY) -> T:
    """The outcome of a call that was refused at first. On a busy machine the limit may be over before the call."""
    for _ in range(TRIES):
        use_up_the_limit(key)
        before = refused()
        outcome = call()
        if refused() > before:
            return outcome
    raise AssertionError("the client was never refused")
