"""One GET to one replica, again and again: bounded in time and size, and never an exception for what a replica does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from gateway.fleet.fault import Failed, Fault

Clients = Callable[[float], httpx.AsyncClient]
"""Makes a client whose every phase is limited to that many seconds."""

# Below vLLM's own (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, 5 s), so that a reused connection is not one it is just closing.
_KEEPALIVE_S = 4.0


def clients() -> Clients:
    """The factory for real use: no proxies or netrc from the environment, no redirects, no cookies."""
    tls = ssl.create_default_context()  # 10 ms of CPU, hence one for all
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_KEEPALIVE_S)

    def make(timeout_s: float) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=tls,
            timeout=timeout_s,
            limits=limits,
            trust_env=False,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    return make


class Fetcher:
    """GETs one URL, one at a time, over a connection of its own that is kept while all goes well.

    A client is thrown away with the exchange that failed on it: httpcore loses pool slots when a request is cancelled
    (encode/httpcore#1093), and a timeout is a cancellation.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None,
        timeout_s: float,
        limit_bytes: int,
        clients: Clients,
        body: bytes | None = None,
    ) -> None:
        """`key` is sent as a Bearer token; `timeout_s` covers connecting to the last byte of the body.

        With a `body`, JSON, it is a POST.
        """
        headers = {b"Accept-Encoding": b"identity", b"User-Agent": b"tailgate"}
        if key is not None:
            headers[b"Authorization"] = b"Bearer " + key.encode()
        if body is not None:
            headers[b"Content-Type"] = b"application/json"
        method = "GET" if body is None else "POST"
        extensions = {"timeout": _phases(timeout_s)}
        self._request = httpx.Request(method, url, headers=headers, content=body, extensions=extensions)
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        self._clients = clients
        self._client: httpx.AsyncClient | None = None

    async def get(self) -> bytes | Failed:
        """The body of a 2xx answer."""
        if self._client is None:
            self._client = self._clients(self._timeout_s)
        clean = False
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._exchange(self._client)
            clean = True
        except (TimeoutError, httpx.TimeoutException):
            answer = Failed(Fault.TIMEOUT, f"no complete answer within {self._timeout_s:g} s")
        except httpx.ConnectError:
            answer = Failed(Fault.UNREACHABLE, "cannot connect")
        except (httpx.TransportError, OSError) as error:
            # Only the type: h11's messages quote the header they object to.
            answer = Failed(Fault.BROKEN, type(error).__name__)
        finally:
            if not clean:
                await self.aclose()
        return answer

    async def _exchange(self, client: httpx.AsyncClient) -> bytes | Failed:
        response = await client.send(self._request, stream=True)
        try:
            if not response.is_success:
                return Failed(Fault.STATUS, f"answered {response.status_code}")
            if response.headers.get("content-encoding", "identity") != "identity":
                return Failed(Fault.ENCODED, "answered with a content encoding")
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > self._limit_bytes:
                    return Failed(Fault.TOO_LARGE, f"the body exceeds {self._limit_bytes} bytes")
            return bytes(body)
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        """Close the connection; the next `get` opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _phases(timeout_s: float) -> dict[str, float]:
    """httpx's limits per phase, for a request that is built once and sent often."""
    return dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
