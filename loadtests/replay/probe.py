"""The first contact: whether the target answers, and how it counts the tokens of a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from gateway.core.request import Endpoint
from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.clients import Clients
from loadtests.replay.prompts import Prompts, Sizes, fitted
from loadtests.replay.request import Outcome, Request
from loadtests.replay.target import Length, Target, Writer
from loadtests.replay.unconnected import OwnLimit, told

WORDS = (8, 136)
TIMEOUT_S = 60.0
TELL_S = 2.0
"""Seconds without an answer after which the wait is reported."""
NOT_FOUND = 404


class NoContact(Exception):
    """The target does not answer as needed, so nothing more is sent. The text says why."""


class NotFound(NoContact):
    """The target answered that it does not know the request's model or path."""


async def probe(
    target: Target,
    arrival: Arrival,
    seed: int,
    tell: Callable[[str], None] = lambda what: None,
    timeout_s: float = TIMEOUT_S,
) -> Sizes | None:
    """Ask for one token after two prompts of different length, as `arrival` would. Raises NoContact.

    None if the target refused, or does not report counts. `tell` gets messages about the wait.
    """
    timeout_s = min(TIMEOUT_S, timeout_s)
    writer = Writer(replace(target, length=Length.CAP), Prompts(seed, Sizes(0.0, 1.0)))
    asked = replace(arrival, output_tokens=1, max_tokens=1, stream=False, prefix=())
    counted = []
    for number, words in enumerate(WORDS):
        waiting = asyncio.get_running_loop().call_later(TELL_S, tell, f"waiting for the first answer of {target.url}")
        try:
            request = await _ask(target, writer, Request(-1 - number, replace(asked, prompt_tokens=words)), timeout_s)
        finally:
            waiting.cancel()
        if 300 <= request.status < 400:
            raise NoContact(
                f"{target.url} redirects the first request ({request.status}): "
                "give --target the address of the redirect"
            )
        if request.outcome is Outcome.TIMEOUT:
            tell(f"{target.url} did not answer the first request within {timeout_s:g} s")
        if request.outcome in (Outcome.CONNECT, Outcome.RESET, Outcome.NO_HTTP, Outcome.INVALID):
            refusal = NotFound if request.status == NOT_FOUND else NoContact
            raise refusal(f"{target.url} {_told(request)}")
        if request.outcome is not Outcome.FINISHED or not request.prompt_tokens:
            return None
        counted.append((words, request.prompt_tokens))
    try:
        return fitted(counted)
    except ValueError as error:
        raise NoContact(f"{target.url} counts tokens in an unknown way: {error}") from None


async def reach(target: Target) -> None:
    """Check that the target accepts connections, without a request. Raises NoContact."""
    clients = Clients(target, asyncio.get_running_loop().time, lambda *_: None, lambda *_: None, TIMEOUT_S)
    await _connect(clients, target)
    clients.close(Outcome.TIMEOUT)


async def _connect(clients: Clients, target: Target) -> None:
    try:
        await clients.warm(1)
    except OwnLimit:
        raise
    except UnicodeError:
        raise NoContact(f"{target.url} cannot be reached: no host can have that name") from None
    except OSError as error:
        raise NoContact(f"{target.url} cannot be reached: {told(error)}") from None


async def _ask(target: Target, writer: Writer, request: Request, timeout_s: float) -> Request:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    clients = Clients(target, loop.time, lambda *_: over.set_result(None), lambda *_: None, timeout_s)
    await _connect(clients, target)
    clients.send(request, writer.request(request.number, request.arrival))
    await asyncio.wait([over], timeout=timeout_s)
    clients.close(Outcome.TIMEOUT)
    return request


def _told(request: Request) -> str:
    match request.outcome:
        case Outcome.CONNECT:
            return f"cannot be reached: {request.reason}"
        case Outcome.INVALID:
            untold = request.reason == f"status {request.status}"
            # not an error of an OpenAI API: the server does not know the path
            if request.status == NOT_FOUND and untold:
                return f"does not seem to serve {Endpoint.CHAT.value}: it answers 404 to the first request"
            hint = {401: "; give --key", NOT_FOUND: "; give --model"}.get(request.status, "")
            why = "" if untold or request.reason == str(request.status) else f": {request.reason}"
            return f"answers {request.status} to the first request{why}{hint}"
        case _:
            return f"does not speak proper HTTP: {request.reason}"
