"""Repeated GETs to one replica, limited in time and size. A failure is returned as a value, never raised."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from gateway.core.pool_spec import ReplicaAccess
from gateway.fleet.connection import ReadingConnection
from gateway.fleet.fault import Failed, ReadFault
from gateway.late import Within
from gateway.tls import context_of, tls_cause
from gateway.wire.http.written_heads import DP_RANK


class Fetcher:
    """Sends GETs to one URL, one at a time. It keeps its own connection until an error.

    A server may go on with a request whose client has gone. So with `patience_s`, a request that timed out is not given
    up before that time, and no other is sent meanwhile.
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
        """`url`: as a policy has it, with its host in ASCII. `access`: token, Host and TLS. `timeout_s`: limit from
        connecting to the last byte of the body.

        `body`: JSON; if given, the request is a POST. `limit_bytes`: largest answer; None discards the answer as it
        arrives.
        """
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
        lines = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            f"Host: {access.host or parts.netloc}",
            "Accept: */*",
            "Accept-Encoding: identity",
            "User-Agent: tailgate",
        ]
        if access.key is not None:
            lines.append(f"Authorization: Bearer {access.key}")
        if request_id is not None:
            lines.append(f"X-Request-Id: {request_id.decode()}")
        if dp_rank is not None:
            lines.append(f"{DP_RANK}: {dp_rank}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self._request = "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")
        self._is_valid = all(line.isprintable() for line in lines)
        """Whether no value begins a header of its own."""
        self._url = url
        self._access = access
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._limit_bytes = limit_bytes
        self._connection: ReadingConnection | None = None
        self.losses = 0
        """How often the connection was found lost, or could not be made."""

    async def get(self) -> bytes | Failed:
        """The body of a 2xx answer, or why it could not be read.

        A timeout while the gateway stood still says nothing about the replica, so it is asked once more. A gateway that
        is always late must notice a replica that hangs, too.
        """
        if not self._is_valid:
            return Failed(ReadFault.UNREACHABLE, "its URL, Host or key has characters that a header cannot have")
        try:
            for is_last in (False, True):
                within = Within(self._timeout_s)
                with suppress(TimeoutError):
                    async with within:
                        return await self._answer()
                if is_last or not within.was_late:
                    break
        except asyncio.CancelledError:
            self.close()
            raise
        now, connection = asyncio.get_running_loop().time(), self._connection
        if connection is None or not connection.is_busy or now - connection.asked_at >= self._patience_s:
            self.close()
        return Failed(ReadFault.TIMEOUT, f"no complete answer within {self._timeout_s:g} s")

    async def _answer(self) -> bytes | Failed:
        connection = self._connection
        if connection is not None and connection.is_busy:
            # an answer to an earlier call says nothing about now
            self.losses += isinstance(await connection.answer(), Exception)
        if connection is not None:
            self.losses += connection.was_lost
            if connection.is_idle:
                answer = await connection.ask(self._request)
                if not isinstance(answer, Exception):
                    return answer
                # the replica may have closed a reused connection; a new one is tried at once
                self.losses += 1
            self.close()
        connection = ReadingConnection(self._limit_bytes)
        try:
            await self._connect(connection)
        except OSError as error:
            self.losses += 1
            return Failed(ReadFault.UNREACHABLE, self._tls_cause(error) or _cause(error))
        except UnicodeError:
            return Failed(ReadFault.UNREACHABLE, "the host name in its URL is not valid")
        except asyncio.CancelledError:
            connection.close()  # it may be open: uvloop closes it without a word
            raise
        self._connection = connection
        answer = await connection.ask(self._request)
        if isinstance(answer, Exception):
            self.losses += 1
            return Failed(ReadFault.BROKEN, self._tls_cause(answer) or self._said(answer))
        return answer

    async def _connect(self, connection: ReadingConnection) -> None:
        context = context_of(self._url, self._access)
        name = (self._access.tls.server_name or self._host) if context is not None else None
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: connection, self._host, self._port, ssl=context, server_hostname=name)

    def _said(self, error: Exception) -> str:
        """How an exchange broke, with what may help."""
        said = f"the answer broke off ({_cause(error)})" if isinstance(error, OSError) else f"it is not HTTP: {error}"
        if self._url.startswith("https:") and not self._access.tls.cert_file:
            said += "; if it wants a certificate of the gateway, write tls.cert_file"
        return said

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still awaited after its timeout."""
        return self._connection is not None and self._connection.is_busy

    def close(self) -> None:
        """Give up the request under way, and close the connection. The next `get` opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _tls_cause(self, error: BaseException) -> str:
        """Why TLS failed; empty if it did not."""
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLError):
                return tls_cause(cause, self._host, self._access.tls)
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
