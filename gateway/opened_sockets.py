"""Listening sockets that systemd opened before it started the gateway (sd_listen_fds(3)).

They stay open while the gateway restarts, so that connections wait instead of being refused.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Final

from gateway.listener import Listener, ListenError
from gateway.policy.sections.hosts import is_loopback
from gateway.settings import Settings

FIRST: Final = 3
"""Number of the first descriptor."""
ADMIN: Final = "admin"
"""Name of sockets for the admin port (`FileDescriptorName=`). All others are for the API."""


@dataclass(frozen=True, slots=True)
class OpenedSockets:
    """Sockets by their use."""

    api: tuple[socket.socket, ...] = ()
    admin: tuple[socket.socket, ...] = ()

    def addressed(self, settings: Settings) -> Settings:
        """The settings with the addresses of the sockets: of several, one that other machines reach."""
        found: dict[str, object] = {}
        for prefix, sockets in (("", self.api), ("admin_", self.admin)):
            for host, port, *_ in sorted((each.getsockname() for each in sockets), key=lambda at: is_loopback(at[0])):
                found.setdefault(f"{prefix}host", host)
                found.setdefault(f"{prefix}port", port)
        return settings.model_copy(update=found)

    def give(self, api: Listener, admin: Listener) -> None:
        """Have these listen at the sockets, before they begin."""
        api.given = list(self.api) or api.given
        admin.given = list(self.admin) or admin.given


def opened_sockets() -> OpenedSockets:
    """The sockets for this process. Its children do not find them. Raises ListenError if one cannot be used."""
    pid, count, names = [os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")]
    if pid != str(os.getpid()):
        return OpenedSockets()
    if not count.isdecimal():
        raise ListenError(f"LISTEN_FDS is {count!r}, not a number of sockets: let systemd set it")
    admin: list[socket.socket] = []
    api: list[socket.socket] = []
    for number, name in enumerate((names.split(":") + [""] * int(count))[: int(count)], FIRST):
        sock = socket.socket(fileno=number)
        sock.set_inheritable(False)
        is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
        if not is_tcp or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            refused = f"systemd's socket {name} is no listening TCP port"
            raise ListenError(f"{refused}: write ListenStream=8080 and Accept=no in its unit")
        (admin if name == ADMIN else api).append(sock)
    return OpenedSockets(tuple(api), tuple(admin))
