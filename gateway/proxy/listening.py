"""Options that connections inherit from the socket that they are accepted on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Final

# A client that vanished without a word, on a connection where nothing is to be sent, is found out after two minutes.
KEEP_ALIVE_IDLE_S: Final = 60
KEEP_ALIVE_INTERVAL_S: Final = 15
KEEP_ALIVE_PROBES: Final = 4
# Linux doubles it, and would else let it grow to 4 MiB (tcp_wmem) for a reader that does not read.
SEND_BUFFER_BYTES: Final = 128 * 1024

# By the names they have where they exist: Linux says KEEPIDLE, macOS KEEPALIVE.
_TCP: Final = {
    "TCP_KEEPIDLE": KEEP_ALIVE_IDLE_S,
    "TCP_KEEPALIVE": KEEP_ALIVE_IDLE_S,
    "TCP_KEEPINTVL": KEEP_ALIVE_INTERVAL_S,
    "TCP_KEEPCNT": KEEP_ALIVE_PROBES,
}


def tune(sockets: Iterable[socket.socket]) -> None:
    """Have connections accepted from now on probed while they are idle, and hold a bounded amount in the kernel."""
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
