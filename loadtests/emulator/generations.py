"""POST to one of the endpoints of `ANSWERS`: from the body to sequences in the engine, and back to an answer."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from loadtests.emulator import asks, errors, rendered, stored
from loadtests.emulator.answers import ANSWERS
from loadtests.emulator.asks import Ask, Choice, Quirk
from loadtests.emulator.engine import Engine, Sequence
from loadtests.emulator.exchange import Exchange
from loadtests.emulator.faults import Fault, FaultKind

if TYPE_CHECKING:
    from loadtests.emulator.replica import EmulatedReplica

PHRASE = (b" all", b" work", b" and", b" no", b" play")
GARBAGE = b"\x00\x01\x02 this is not HTTP\r\n\xff\xfe\r\n\r\n"


def answer(replica: EmulatedReplica, exchange: Exchange) -> None:
    """Answer a request under the current fault."""
    received, fault = exchange.received, replica.strike()
    if fault is not None and _spoilt_at_once(replica, exchange, fault):
        return
    try:
        body = received.body if replica.stored is None else replica.stored.whole(received.path, received.body)
        request = asks.parse(received.path, body, replica.settings, _quirk(fault))
        if fault is not None and fault.kind is FaultKind.ERROR_200:
            _error_200(replica, exchange, request)
            return
        replica.admit(len(request.choices))
        engine = replica.rank_for(received)
    except errors.Rejected as rejected:
        _reply(replica, exchange, rejected.status, rejected.body(received.path))
        return
    cookie = fault is not None and fault.kind is FaultKind.SET_COOKIE
    headers = b"set-cookie: emulator=%d; Path=/\r\n" % replica.port if cookie else b""
    _Generation(replica, engine, exchange, request, headers).start()


def _quirk(fault: Fault | None) -> Quirk | None:
    match fault:
        case Fault(kind=FaultKind.BALLOON):
            return Quirk()
        case Fault(kind=FaultKind.REPEAT):
            return Quirk(PHRASE)
        case _:
            return None


def _spoilt_at_once(replica: EmulatedReplica, exchange: Exchange, fault: Fault) -> bool:
    """Whether the fault has answered the request already."""
    path = exchange.received.path
    match fault.kind:
        case FaultKind.DIE_ON_MARKER if fault.marker.encode() in exchange.received.body:
            replica.fault(FaultKind.DEAD)
        case FaultKind.STATUS_503:
            _reply(replica, exchange, 503, errors.busy().body(path), b"retry-after: %d\r\n" % fault.retry_after_s)
        case FaultKind.STATUS_500:
            _reply(replica, exchange, 500, errors.shut_down().body(path))
        case FaultKind.GARBAGE if fault.how != "json":
            exchange.transport.write(GARBAGE)
            exchange.transport.close()
        case _:
            return False
    return True


def _error_200(replica: EmulatedReplica, exchange: Exchange, request: Ask) -> None:
    if not request.stream:
        raise errors.busy()
    replica.answered[(request.path, 200)] += 1
    exchange.open()
    name = b"event: error\n" if request.path == errors.MESSAGES else b""
    for event in (b"%bdata: %b\n\n" % (name, errors.busy().body(request.path)), b"data: [DONE]\n\n"):
        exchange.event(b"%x\r\n%b\r\n" % (len(event), event))
    exchange.close()


def _reply(replica: EmulatedReplica, exchange: Exchange, status: int, body: bytes, headers: bytes = b"") -> None:
    replica.answered[(exchange.received.path, status)] += 1
    exchange.reply(status, body, headers)


class _Generation:
    """One request in the engine, with one sequence per choice. A stalled answer stays in flight until its client
    leaves."""

    def __init__(
        self, replica: EmulatedReplica, engine: Engine, exchange: Exchange, request: Ask, headers: bytes
    ) -> None:
        self._replica = replica
        self._engine = engine
        self._exchange = exchange
        self._ask = request
        self._headers = headers
        self._answer = ANSWERS[request.path](request, replica.number_of_answer(), int(time.time()), exchange.event)
        self._ids: list[int] = []
        self._left = len(request.choices)

    def start(self) -> None:
        """Queue every sequence. The head of a stream goes out at once, as vLLM's does."""
        request, exchange = self._ask, self._exchange
        self._replica.in_flight += 1
        if request.model != self._replica.settings.model:
            self._replica.adapters_in_flight[request.model] += 1
        exchange.on_over = self._over
        if request.stream:
            self._replica.answered[(request.path, 200)] += 1
            exchange.open(self._headers)
            self._answer.opening()
        if not request.choices:
            _reply(self._replica, exchange, 200, self._answer.body(), self._headers)
        elif not exchange.over:
            self._ids = self._engine.submit(map(self._sequence, range(len(request.choices))))

    def _sequence(self, index: int) -> Sequence:
        choice = self._ask.choices[index]
        voice = self._answer.voice(index) if self._ask.stream else None
        end = partial(self._ended, choice.finish_reason, choice.prompt_tokens)
        prefix, answer = self._blocks(choice)
        return Sequence(choice.prompt_tokens, choice.output_tokens, voice, end, prefix, answer)

    def _blocks(self, choice: Choice) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Hashes of the blocks of a prompt, and of its answer in the form in which a later prompt repeats it."""
        profile = self._engine.model.profile
        if not choice.prompt or not profile.prefix_caching:
            return (), ()
        # The last token was sampled, but its KV was never computed. No later prompt repeats an answer as token ids, so
        # there it has only a size.
        by_id = isinstance(self._ask.fields.get("prompt"), list)
        said = choice.prompt + b"".join(rendered.token(p) if by_id else p for p in choice.pieces[:-1])
        chain = rendered.blocks(said, profile.kv_block_tokens, self._ask.fields.get("cache_salt"))
        whole = choice.prompt_tokens // profile.kv_block_tokens
        return chain[:whole], chain[whole:]

    def _ended(self, reason: str, prompt_tokens: int, hit_tokens: int) -> None:
        """A sequence is over; the last one completes the answer."""
        self._left -= 1
        self._replica.finished[reason] += 1
        self._answer.cached_tokens = hit_tokens
        profile = self._engine.model.profile
        if profile.prefix_caching:
            self._answer.created_tokens = (
                prompt_tokens // profile.kv_block_tokens * profile.kv_block_tokens - hit_tokens
            )
        if self._left:
            return
        if self._replica.stored is not None and self._ask.path == stored.PATH:
            self._replica.stored.keep(self._answer.id, self._ask.fields, self._ask.choices[0].text())
        if self._ask.stream:
            self._answer.closing()
            self._exchange.close()
        else:
            _reply(self._replica, self._exchange, 200, self._answer.body(), self._headers + self._load())

    def _over(self, done: bool) -> None:
        """The exchange is over: answered to the end, cut off by a fault, or left by the client."""
        self._replica.in_flight -= 1
        self._replica.adapters_in_flight -= Counter((self._ask.model,))
        if not done:
            for id in self._ids:
                if self._engine.cancel(id):
                    self._replica.finished["abort"] += 1
        self._replica.notify()

    def _load(self) -> bytes:
        """vLLM's load report. An answer that is not streamed carries it if its request asks for it."""
        if b"endpoint-load-metrics-format" not in self._exchange.received.head.lower():
            return b""
        metrics = '{"named_metrics": {"num_requests_waiting": %.1f, "kv_cache_usage_perc": %s}}'
        values = (self._replica.waiting, self._engine.model.kv_fraction)
        return f"endpoint-load-metrics: JSON {metrics % values}\r\n".encode()
