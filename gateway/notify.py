"""Tells systemd when the gateway is ready, and when it stops (`Type=notify`; sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger("tailgate")


def notify(state: str) -> None:
    """Tell the service manager a state, such as READY=1. Does nothing without one."""
    place = os.environ.get("NOTIFY_SOCKET")
    if not place:
        return
    address = f"\0{place[1:]}" if place.startswith("@") else place
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(state.encode(), address)
    except OSError as error:
        log.warning("systemd cannot be told %s at %s: %s", state, place, error.strerror or error)
