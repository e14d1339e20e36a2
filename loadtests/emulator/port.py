"""A port that stays reserved while its listener is closed, so that it can refuse connections and reopen."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable


class Port:
    """Bound at once, listening between `open` and `shut`. Raises OSError if the port is taken."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        if port:
            _bound(host, port, shared=False).close()  # fails if another process listens there
        self._placeholder = _bound(host, port)  # it never listens: without a listener connections are refused
        self.number: int = self._placeholder.getsockname()[1]
        self._server: asyncio.Server | None = None

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None

    async def open(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Listen, unless the port listens already."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(protocol, sock=_bound(self.host, self.number), backlog=2048)

    def shut(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Release the port."""
        self.shut()
        self._placeholder.close()


def _bound(host: str, port: int, *, shared: bool = True) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(error.errno, f"port {port} is taken") from None
        raise
    return bound
