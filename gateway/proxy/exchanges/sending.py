"""Writes the requests that an exchange sends to replicas, and their copies for shadow pools."""

from __future__ import annotations

from typing import Final

from gateway.core.policy import Model
from gateway.core.request import Request
from gateway.proxy.replica.owner import AttemptOwner
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.proxy.services import ExchangeServices
from gateway.proxy.stored_responses import first_if_stored
from gateway.wire.fingerprint import fingerprint
from gateway.wire.http.headers import PROCESS, RequestHead
from gateway.wire.http.written_heads import upstream_head
from gateway.wire.isolation import salted
from gateway.wire.parsed import Parsed
from gateway.wire.render import change_lines, render, without_store

MAX_COPY_S: Final = 600.0
_OURS: Final = f"-{PROCESS.decode()}"


class RequestSender(AttemptOwner):
    """The side of an exchange that faces replicas. It holds the parsed request until an answer is committed."""

    __slots__ = (
        "_body_cap",
        "_first",
        "_head",
        "_model",
        "_more_lines",
        "_parsed",
        "_rid",
        "_services",
        "request_id",
    )

    def __init__(self, services: ExchangeServices, head: RequestHead, parsed: Parsed, request: Request) -> None:
        super().__init__(services.driver, request, parsed)
        self.request_id = head.request_id
        self._rid = head.request_id.encode()
        self._services = services
        self._head = head
        self._parsed: Parsed | None = parsed
        self._model: Model = request.model
        """The model that serves the request."""
        self._body_cap = -1
        """The cap on the output with which the body was sent last; -1 if it was not sent."""
        self._more_lines = b""
        """Header lines of the answer, on what was changed in the request."""
        self._first = first_if_stored(request, parsed)
        """Hash of the tools and instructions if the answer may be stored; else None."""

    def _render(self, parsed: Parsed, max_tokens: int, degraded: bool, model: str) -> bytes:
        """The body of an attempt. `model`: the fallback model to ask for; empty if none. A copy for a shadow pool is
        sent with the first.
        """
        if model:
            self._model = self.request.policy.models[model]
        body = render(parsed, self._sent_as(parsed), max_tokens)  # written for each attempt, since it may be long
        if self._body_cap != max_tokens:
            self._body_cap = max_tokens
            self._more_lines = change_lines(parsed, max_tokens)
            if degraded:
                self._more_lines += b"x-tailgate-degraded: max_tokens\r\n"
            if model or self.request.split:
                self._more_lines += b"x-tailgate-model: %b\r\n" % self._model.name.encode()
            if self._model.mirror is not None:
                self._copy(parsed, max_tokens)
        return body

    def without_options(self, attempt_id: int, upstream: ReplicaConnections, max_tokens: int) -> bytes | None:
        """The HTTP message without `stream_options`, for a replica that refuses them; None if it has none anyway."""
        parsed = self._parsed
        if parsed is None or not parsed.options:
            return None
        return self._message(attempt_id, upstream, render(parsed, self._sent_as(parsed), max_tokens, False))

    def body_hash(self) -> int | None:
        """Hash of the request body; None after a commit, because it is no longer needed then."""
        return None if self._parsed is None else fingerprint(self._parsed)

    def _sent_as(self, parsed: Parsed) -> str:
        """The model name for a replica; the name of the LoRA adapter if one was asked for and no fallback serves."""
        adapter = self.request.affinity.adapter
        if adapter and self._model is self.request.model:
            return adapter
        return self._model.sent_as(parsed.model)

    def _copy(self, parsed: Parsed, max_tokens: int) -> None:
        """Send a copy to the model's shadow pool, if one is due. Forms and continued responses are not copied."""
        service, model = self._services.mirror, self._model
        mirror = model.mirror
        if service is None or mirror is None or parsed.api.shape.is_form:
            return
        if self.request.affinity.stored is not None:
            return
        if service.admits(model, len(parsed.payload)):
            body = render(parsed, name := mirror.upstream or self._sent_as(parsed), max_tokens)
            body = body if self._first is None else without_store(body)
            body = salted(body, self.request.endpoint, self.request.policy.pools[mirror.to], self.request.tenant)
            rid, total_s = b"%b-%bm" % (self._rid, PROCESS), min(MAX_COPY_S, self.request.tier.timeouts.total_s)
            service.send(model, name, self.request.endpoint, body, rid, total_s)

    def _message(self, attempt_id: int, upstream: ReplicaConnections, body: bytes) -> bytes:
        """The whole HTTP message of an attempt: head and body."""
        # vLLM uses this id as its own id, which must be unique among running requests. So duplicates get an id of their
        # own, and so do requests with the same id from other clients.
        rid = f"{self.request_id}{_OURS}{attempt_id}"
        body = salted(body, self.request.endpoint, upstream.pool, self.request.tenant)
        return upstream_head(upstream.prefix(self.request.endpoint), self._head, rid, len(body)) + body
