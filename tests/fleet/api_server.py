"""An API server of Kubernetes with EndpointSlices: it lists in pages, watches, forgets versions and goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

Object = dict[str, object]


def endpoint(address: str | None, pod: str = "", **conditions: bool) -> Object:
    """One endpoint; without an address, as of an evicted pod."""
    found: Object = {"addresses": [address] if address else [], "conditions": conditions}
    return found | ({"targetRef": {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"}} if pod else {})


class ApiServer:
    """`slices` by name. Each change gets the next version, and watches are told of it."""

    def __init__(self) -> None:
        self.slices: dict[str, Object] = {}
        self.version = 10
        self.oldest = 0
        """Watches and pages from an older version are gone."""
        self.page = 500
        self.status = 200
        self.ends_watches = False
        """Whether it ends each watch at once."""
        self.tokens: list[str] = []
        """Token of each request."""
        self.lists = 0
        self.watches = 0
        self.selectors: set[str] = set()
        self._events: list[tuple[int, bytes]] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def put(self, name: str, *endpoints: Object, port: int = 8000, kind: str = "IPv4") -> None:
        """Create or replace a slice. Without endpoints it has no ports either, as that of a service without pods."""
        happened = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = {
            "metadata": {"name": name},
            "addressType": kind,
            "endpoints": list(endpoints) or None,
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}] if endpoints else None,
        }
        self._happened(happened, self.slices[name])

    def delete(self, name: str) -> None:
        """Delete a slice."""
        self._happened("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        """Tell watches the present version."""
        self._happened("BOOKMARK", {"metadata": {}})

    def forget(self) -> None:
        """Forget all versions: watches end with an event 410, and cannot go on from where they were."""
        self.version += 1
        self.oldest = self.version
        gone = {"kind": "Status", "metadata": {}, "code": 410, "message": "too old resource version"}
        self._send(json.dumps({"type": "ERROR", "object": gone}).encode())

    def disconnect(self) -> None:
        """Cut all connections."""
        for writer in self._open:
            writer.transport.abort()

    @property
    def watching(self) -> int:
        """Watches that are open."""
        return len(self._open)

    def _happened(self, kind: str, what: Object) -> None:
        self.version += 1
        metadata = what["metadata"]
        assert isinstance(metadata, dict)
        metadata["resourceVersion"] = str(self.version)
        event = json.dumps({"type": kind, "object": what}).encode()
        self._events.append((self.version, event))
        self._send(event)

    def _send(self, event: bytes) -> None:
        for writer in self._open:
            writer.write(b"%x\r\n%b\n\r\n" % (len(event) + 1, event))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
                self.tokens.append(lines.get("authorization", "").removeprefix("bearer "))
                url = urlsplit(head.split(" ")[1])
                assert url.path == "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                self.selectors.add(query["labelSelector"])
                if self.status != 200:
                    writer.write(_whole({"kind": "Status", "metadata": {}, "code": self.status}, self.status))
                elif "watch" in query:
                    await self._watch(query, reader, writer)
                else:
                    writer.write(self._list(query))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left
        finally:
            self._open.discard(writer)
            writer.close()

    def _list(self, query: dict[str, str]) -> bytes:
        start, version = map(int, query.get("continue", f"0.{self.version}").split("."))
        if "continue" not in query:
            self.lists += 1
        elif version < self.oldest:
            return _whole({"kind": "Status", "metadata": {}, "code": 410}, 410)
        items = list(self.slices.values())
        end = start + min(self.page, int(query["limit"]))
        following = f"{end}.{version}" if end < len(items) else ""
        metadata = {"resourceVersion": str(version), "continue": following}
        return _whole({"metadata": metadata, "items": items[start:end]}, 200)

    async def _watch(self, query: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.watches += 1
        since = int(query["resourceVersion"])
        assert query["allowWatchBookmarks"] == "true"
        if since < self.oldest:
            writer.write(_whole({"kind": "Status", "metadata": {}, "code": 410}, 410))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        if self.ends_watches:
            writer.write(b"0\r\n\r\n")
            return
        for version, event in self._events:
            if version > since:
                writer.write(b"%x\r\n%b\n\r\n" % (len(event) + 1, event))
        self._open.add(writer)
        await reader.read()

    async def start(self) -> None:
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        self.disconnect()


def _whole(what: Object, status: int) -> bytes:
    body = json.dumps(what).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    """A running API server."""
    server = ApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
