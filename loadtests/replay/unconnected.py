"""Why there is no connection: the fault of the target, or a limit of the generator's machine."""

from __future__ import annotations

import errno
import os
import ssl

OWN_LIMITS = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (sysctl fs.file-max)",
    errno.EADDRNOTAVAIL: "all local ports are in use: lower the rate, or give the target a second address",
    errno.ENOBUFS: "the system has no memory left for sockets: lower the rate",
}
"""Errors that are not the target's fault, and their remedy."""


class OwnLimit(OSError):
    """The generator's machine has no room for more connections, so it would measure only itself from here on."""


def told(error: OSError) -> str:
    """The text of an error, in words. Numbers of TLS errors are not error numbers of the system."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error) or "lost"


def own_limit(error: OSError, connections: int) -> OwnLimit | None:
    """The text of the machine's limit at this many connections; None if the target is at fault."""
    if isinstance(error, ssl.SSLError) or error.errno not in OWN_LIMITS:
        return None
    return OwnLimit(
        f"the generator could open no more than {connections:,} connections ({told(error)}), so nothing is reported: "
        f"{OWN_LIMITS[error.errno]}"
    )
