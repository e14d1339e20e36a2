"""The listening sockets of the process: a uvicorn server for each, and the options that connections inherit."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from gateway.admin_connection import bound_socket

BACKLOG: Final = 4096
# A client that vanished, on a connection with nothing to send, is detected after two minutes.
KEEP_ALIVE_IDLE_S: Final = 60
KEEP_ALIVE_INTERVAL_S: Final = 15
KEEP_ALIVE_PROBES: Final = 4
# Linux doubles this value, and would otherwise let it grow to 4 MiB (tcp_wmem) for a reader that does not read.
SEND_BUFFER_BYTES: Final = 128 * 1024

# By name, if the platform has the option: Linux says KEEPIDLE, macOS KEEPALIVE.
_TCP: Final = {
    "TCP_KEEPIDLE": KEEP_ALIVE_IDLE_S,
    "TCP_KEEPALIVE": KEEP_ALIVE_IDLE_S,
    "TCP_KEEPINTVL": KEEP_ALIVE_INTERVAL_S,
    "TCP_KEEPCNT": KEEP_ALIVE_PROBES,
}


class Listener(uvicorn.Server):
    """One uvicorn server among several in the process, which handles signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        if self.config.uds is None:
            await super().startup(sockets)
            for server in self.servers:
                tune(server.sockets)
            return
        # uvicorn would let every local user open it.
        bound = bound_socket(Path(self.config.uds))
        await self.lifespan.startup()
        self.servers = [
            await asyncio.get_running_loop().create_unix_server(self._protocol, sock=bound, backlog=self.config.backlog)
        ]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @property
    def port(self) -> int:
        """The port that it really listens on."""
        return int(self.servers[0].sockets[0].getsockname()[1])


def listener(app: object, host: str = "", port: int = 0, **options: object) -> Listener:
    """A server that does not listen yet; `options` are those of uvicorn."""
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
        interface="asgi3",
        ws="none",
        proxy_headers=False,
        server_header=False,
        **{"backlog": BACKLOG} | options,  # type: ignore[arg-type]
    )
    return Listener(config)


async def no_app(scope: object, receive: object, send: object) -> None:
    """Stand in where uvicorn wants an ASGI application."""
    raise AssertionError("requests to the API port never reach an ASGI application")


def tune(sockets: Iterable[socket.socket]) -> None:
    """Probe future connections while they are idle, and bound their bytes in the kernel."""
    for shown in sockets:
        if shown.family not in (socket.AF_INET, socket.AF_INET6):
            continue
        with socket.socket(fileno=os.dup(shown.fileno())) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _TCP.items():
                option: int | None = getattr(socket, name, None)
                if option is not None:
                    listening.setsockopt(socket.IPPROTO_TCP, option, value)
