"""The listening sockets of the process: a uvicorn server for each, and the options that connections inherit."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from gateway.access import POLL_FILES_S, stamps_of

log = logging.getLogger("tailgate")

CANNOT_LISTEN: Final = 3
"""Exit status if a port cannot be used. uvicorn uses the same."""
BACKLOG: Final = 4096
# TCP keep-alive: a client that vanished while nothing is sent to it is detected after two minutes.
KEEP_ALIVE_IDLE_S: Final = 60
KEEP_ALIVE_INTERVAL_S: Final = 15
KEEP_ALIVE_PROBES: Final = 4
# Size in bytes of the send buffer in the kernel; Linux doubles this value. Without this limit, the buffer of a client
# that does not read may grow to 4 MiB (tcp_wmem).
SEND_BUFFER_BYTES: Final = 128 * 1024
UDS_MODE: Final = 0o660

# Options by name. Options that the platform lacks are skipped. Linux has KEEPIDLE, macOS KEEPALIVE.
_TCP: Final = {
    "TCP_KEEPIDLE": KEEP_ALIVE_IDLE_S,
    "TCP_KEEPALIVE": KEEP_ALIVE_IDLE_S,
    "TCP_KEEPINTVL": KEEP_ALIVE_INTERVAL_S,
    "TCP_KEEPCNT": KEEP_ALIVE_PROBES,
}


class ListenError(Exception):
    """A socket cannot be used. The message names it and says why."""


class Listener(uvicorn.Server):
    """One uvicorn server among several in the process. The process handles signals itself."""

    given: list[socket.socket] | None = None
    """Sockets that it listens at; None: it opens its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: the process handles signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        if self.config.uds is None:
            await super().startup(sockets)
            for server in self.servers:
                tune(server.sockets)
            return
        # The socket is bound here, because uvicorn would let every local user open it.
        try:
            bound = bound_socket(Path(self.config.uds))
        except OSError as error:
            failed = f"the unix socket {self.config.uds} cannot be made: {error.strerror or error}"
            raise ListenError(f"{failed}: give another by --admin-uds (TAILGATE_ADMIN_UDS)") from None
        await self.lifespan.startup()
        self.servers = [
            await asyncio.get_running_loop().create_unix_server(self.protocol, sock=bound, backlog=self.config.backlog)
        ]
        self.started = True

    def protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def watch_certificate(self, certificate: Path, key: Path | None) -> None:
        """Show new connections the certificate in its files, also after these have changed. Runs until cancelled."""
        files = frozenset(filter(None, (certificate, key)))
        stamps = await asyncio.to_thread(stamps_of, files)
        while True:
            await asyncio.sleep(POLL_FILES_S)
            before, stamps = stamps, await asyncio.to_thread(stamps_of, files)
            if stamps == before:
                continue
            try:
                # A context that is in use must not get a certificate without its key.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
                assert self.config.ssl is not None
                self.config.ssl.load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError) as error:
                log.error("the new certificate in %s cannot be used, the old one stays: %s", certificate, error)
            else:
                log.info("the certificate in %s was read again", certificate)

    @property
    def port(self) -> int:
        """The real port on which it listens, also if the given port was 0."""
        return int(self.servers[0].sockets[0].getsockname()[1])


def listener(app: object, host: str = "", port: int = 0, **options: object) -> Listener:
    """A server that does not listen yet. `options`: options of uvicorn."""
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
    """An empty ASGI application, because uvicorn requires one."""
    raise AssertionError("requests to the API port never reach an ASGI application")


def tune(sockets: Iterable[socket.socket]) -> None:
    """Set options that future connections inherit: keep-alive probes, and a limit on the send buffer."""
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


def bound_socket(path: Path) -> socket.socket:
    """A unix socket that only the owner and the group of the process can open.

    A socket left by an earlier process is removed. Any other file there, or the socket of a running process, raises
    OSError.
    """
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _is_served(path):
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The mode is set between `bind` and `listen`, when nobody can connect yet.
        bound.bind(str(path))
        path.chmod(UDS_MODE)
    except OSError:
        bound.close()
        raise
    return bound


def _is_served(path: Path) -> bool:
    """Whether a process listens on a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue of connections is full
        except OSError:
            return False
    return True


def bound_at(host: str, port: int) -> list[socket.socket]:
    """Listening sockets at every address of a host."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    for family, kind, _, _, address in found:
        sock = socket.socket(family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if port == 0 and sockets:
            address = (address[0], sockets[0].getsockname()[1], *address[2:])
        sock.bind(address)
        sock.listen(BACKLOG)
        sockets.append(sock)
    return sockets


def url_at(host: str, port: int, *, is_tls: bool = False) -> str:
    """The URL by which this machine reaches a port that listens at `host`."""
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1"
    return f"http{'s' * is_tls}://{f'[{host}]' if ':' in host else host}:{port}"
