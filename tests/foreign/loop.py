"""An event loop without sockets, in virtual time: when idle, it jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class StuckError(Exception):
    """The loop is idle and no timer is set: all waiting tasks would wait for ever."""


class _NoSockets(selectors.SelectSelector):
    """Never waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError
        if timeout > 0:
            self.now += timeout
        return []


Connect = Callable[[asyncio.Protocol, int], asyncio.Transport]


class VirtualLoop(asyncio.SelectorEventLoop):
    """`connect` makes the other side of a connection; it raises OSError if nobody listens."""

    def __init__(self) -> None:
        self._virtual = _NoSockets()
        super().__init__(self._virtual)
        self.connect: Connect | None = None

    def jump(self, seconds: float) -> None:
        """The process stands still: timers are late, and what arrived meanwhile is not read yet."""
        self._virtual.now += seconds

    def time(self) -> float:
        return self._virtual.now

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: object
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(0)
        protocol = protocol_factory()
        assert self.connect is not None
        transport = self.connect(protocol, port)
        protocol.connection_made(transport)
        return transport, protocol
