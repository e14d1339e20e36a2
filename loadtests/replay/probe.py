"""The first contact: whether the target answers, how it counts the tokens of a prompt, and what it refuses.

Nothing but a target that cannot be reached, or that knows neither key, model nor path, ends a test here.
"""

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
HOPELESS = (401, 403, NOT_FOUND)
"""Statuses that any other request would get, too."""
REFUSABLE = ("stream_options", "ignore_eos", "min_tokens")
"""Fields of a body that only measure, and that some servers refuse."""


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
        if request.outcome is Outcome.CONNECT or request.status in HOPELESS:
            refusal = NotFound if request.status == NOT_FOUND else NoContact
            raise refusal(f"{target.url} {_told(request, timeout_s)}")
        if request.outcome is not Outcome.FINISHED:
            tell(f"{target.url} {_told(request, timeout_s)}: the test goes on, with one token a word")
            return None
        if not request.prompt_tokens:
            return None
        counted.append((words, request.prompt_tokens))
    try:
        return fitted(counted)
    except ValueError as error:
        tell(f"{target.url} counts tokens in an unknown way: {error}: the test goes on, with one token a word")
        return None


async def refused_fields(target: Target, arrival: Arrival, seed: int, timeout_s: float = TIMEOUT_S) -> frozenset[str]:
    """The measuring fields that the target refuses: as few as may be left out so that it answers.

    Empty if it answers a request of the test as it is, or refuses it for another reason. Raises NoContact.
    """
    asked = replace(arrival, prompt_tokens=WORDS[0], output_tokens=1, max_tokens=1, prefix=())

    async def is_refused(without: frozenset[str]) -> Request | None:
        writer = Writer(replace(target, left_out=without), Prompts(seed))
        request = await _ask(target, writer, Request(-9, asked), min(TIMEOUT_S, timeout_s))
        return request if request.outcome is Outcome.INVALID and request.status not in HOPELESS else None

    first = await is_refused(target.left_out)
    if first is None:
        return target.left_out
    sent = [name for name in REFUSABLE if name not in target.extra]
    named = [name for name in sent if name in first.message]
    for names in ([named] if named else []) + [[name] for name in sent] + [sent]:
        if await is_refused(frozenset(names)) is None:
            return frozenset(names)
    return target.left_out


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


def _told(request: Request, timeout_s: float) -> str:
    match request.outcome:
        case Outcome.CONNECT:
            return f"cannot be reached: {request.reason}"
        case Outcome.TIMEOUT:
            return f"did not answer the first request within {timeout_s:g} s"
        case Outcome.INVALID:
            untold = request.reason == f"status {request.status}"
            # not an error of an OpenAI API: the server does not know the path
            if request.status == NOT_FOUND and untold:
                return f"does not seem to serve {Endpoint.CHAT.value}: it answers 404 to the first request"
            hint = {401: "; give --key", NOT_FOUND: "; give --model"}.get(request.status, "")
            why = "" if untold or request.reason == str(request.status) else f": {request.reason}"
            return f"answers {request.status} to the first request{why}{hint}"
        case Outcome.NO_HTTP | Outcome.RESET:
            return f"does not speak proper HTTP: {request.reason}"
        case _:
            return f"does not answer the first request: {request.reason or request.outcome.name.lower()}"
