"""Repeated GETs to one replica, limited in time and size. A failure is returned as a value, never raised."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator, Mapping

import httpx

from gateway.core.pool_spec import ReplicaAccess
from gateway.fleet.fault import Failed, ReadFault
from gateway.late import LATE_S
from gateway.tls import context_of, tls_cause
from gateway.wire.http.written_heads import DP_RANK

# Shorter than vLLM's own timeout (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, 5 s). Otherwise vLLM might close a connection just as
# it is reused.
_KEEPALIVE_S = 4.0
# Limit on the number of chunks of a body. Each takes some 20 us of the event loop, and 4 MiB could come in 4 million
# chunks.
_MAX_PIECES = 4096
_PIECES_AT_ONCE = 256
_LIMITS = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_KEEPALIVE_S)
# For http. This context keeps each transport from loading the system's certificates, which takes 27 ms of CPU.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Fetcher:
    """Sends GETs to one URL, one at a time. It keeps its own connection until an error.

    A server may go on with a request whose client has gone. So with `patience_s`, a request that timed out is not given
    up before that time, and no other is sent meanwhile.

    It uses httpx's transport without its client, so there are no redirects, cookies, proxies or netrc to switch off.
    After a failed exchange the transport is replaced: httpcore loses pool slots when a request is cancelled
    (encode/httpcore#1093).
    """

    def __init__(
        self,
        url: str,
        *,
        access: ReplicaAccess,
        timeout_s: float,
        limit_bytes: int | None,
        body: bytes | None = None,
        request_id: bytes | None = None,
        dp_rank: int | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """`access`: token, Host and TLS. `timeout_s`: limit from connecting to the last byte of the body.

        `body`: JSON; if given, the request is a POST. `limit_bytes`: largest answer; None discards the answer as it
        arrives.
        """
        self._request: httpx.Request | None
        headers = {b"Accept": b"*/*", b"Accept-Encoding": b"identity", b"User-Agent": b"tailgate"}
        if access.key is not None:
            headers[b"Authorization"] = b"Bearer " + access.key.encode()
        if access.host:
            headers[b"Host"] = access.host.encode()
        if body is not None:
            headers[b"Content-Type"] = b"application/json"
        if request_id is not None:
            headers[b"X-Request-Id"] = request_id
        if dp_rank is not None:
            headers[DP_RANK.encode()] = str(dp_rank).encode()
        try:
            self._request = httpx.Request("GET" if body is None else "POST", url, headers=headers, content=body)
        except (httpx.InvalidURL, UnicodeError):
            # The host name breaks the rules of IP addresses or of internationalised names.
            self._request = None
        else:
            self._request.extensions["trace"] = self._trace
            if access.tls.server_name:
                self._request.extensions["sni_hostname"] = access.tls.server_name
        self._url = url
        self._access = access
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._limit_bytes = limit_bytes
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._under_way: asyncio.Task[bytes | Failed] | None = None
        self._began_at = 0.0
        self._is_sent = False
        """Whether the server may have the request that is under way."""
        self.losses = 0
        """How often the connection was found lost, or could not be made."""

    async def get(self) -> bytes | Failed:
        """The body of a 2xx answer, or why it could not be read."""
        if self._request is None:
            return Failed(ReadFault.UNREACHABLE, "its URL is not valid")
        loop, is_late = asyncio.get_running_loop(), self._under_way is not None
        task = self._under_way
        if task is None:
            self._began_at = loop.time()
            task = self._under_way = loop.create_task(self._answer(self._request))
        due_at = loop.time() + self._timeout_s
        try:
            await asyncio.wait((task,), timeout=self._timeout_s)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if task.done():
            self._under_way = None
            # An answer to an earlier call says nothing about now.
            return await self.get() if is_late else task.result()
        if loop.time() - due_at > LATE_S:
            return await self.get()  # the gateway stood still, so this says nothing about the replica
        if not self._is_sent or loop.time() - self._began_at >= self._patience_s:
            self._under_way = None
            task.cancel()  # it closes its connection
        return Failed(ReadFault.TIMEOUT, f"no complete answer within {self._timeout_s:g} s")

    async def _trace(self, event: str, info: Mapping[str, object]) -> None:
        """Called by httpcore: how far the request is."""
        self._is_sent = self._is_sent or event == "http11.send_request_headers.started"

    async def _answer(self, request: httpx.Request) -> bytes | Failed:
        clean, self._is_sent = False, False
        try:
            answer = await self._ask(request)
            clean = True
        except httpx.ConnectError as error:
            self.losses += 1
            answer = Failed(ReadFault.UNREACHABLE, self._tls_cause(error) or _cause(error))
        except (httpx.TransportError, OSError) as error:
            # Only the exception's type is kept, because h11's messages quote the malformed header.
            self.losses += 1
            said = f"the answer broke off or was not HTTP ({type(error).__name__})"
            if request.url.scheme == "https" and not self._access.tls.cert_file:
                said += "; if it wants a certificate of the gateway, write tls.cert_file"
            answer = Failed(ReadFault.BROKEN, self._tls_cause(error) or said)
        finally:
            if not clean:
                await self._close_connection()
        return answer

    async def _ask(self, request: httpx.Request) -> bytes | Failed:
        if self._transport is not None:
            try:
                return await self._exchange(self._transport, request)
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                # the replica may have closed a reused connection; a new one is tried at once
                self.losses += 1
                await self._close_connection()
        context = context_of(self._url, self._access) or _NO_TLS
        self._transport = httpx.AsyncHTTPTransport(verify=context, limits=_LIMITS, trust_env=False)
        return await self._exchange(self._transport, request)

    async def _exchange(self, transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> bytes | Failed:
        try:
            response = await transport.handle_async_request(request)
        except AttributeError as error:
            # anyio asks a new connection for its peer's address. With uvloop, a connection that was reset at once has
            # no socket any more, which raises this error.
            if error.obj is not None or error.name != "getpeername":
                raise
            raise httpx.ConnectError("the connection was reset at once") from error
        try:
            if not response.is_success:
                return Failed(ReadFault.STATUS, f"answered {response.status_code}", response.status_code)
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                return Failed(ReadFault.ENCODED, "answered with a content encoding, which was not asked for")
            body, pieces = bytearray(), 0
            async for chunk in response.aiter_raw():
                pieces += 1
                if pieces % _PIECES_AT_ONCE == 0:
                    # lets other work run, because bytes that are already received are parsed without a pause
                    await asyncio.sleep(0)
                if self._limit_bytes is None:
                    continue
                body += chunk
                if len(body) > self._limit_bytes:
                    return Failed(ReadFault.TOO_LARGE, f"the body exceeds {self._limit_bytes} bytes")
                if pieces > _MAX_PIECES:
                    return Failed(ReadFault.TOO_LARGE, f"the body comes in more than {_MAX_PIECES} pieces")
            return bytes(body)
        finally:
            await response.aclose()

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still awaited after its timeout."""
        return self._under_way is not None

    async def aclose(self) -> None:
        """Give up the request under way, and close the connection. The next `get` opens another."""
        task, self._under_way = self._under_way, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await self._close_connection()

    async def _close_connection(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def _tls_cause(self, error: BaseException) -> str:
        """Why TLS failed; empty if it did not."""
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLError):
                return tls_cause(cause, httpx.URL(self._url).host, self._access.tls)
        return ""


def _cause(error: BaseException) -> str:
    """The system's own words for a failed connection, such as `Connection refused`."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno:
            # asyncio and uvloop word errors of the system differently; those of name resolution are below 0
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    return str(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and those from which it was raised."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
