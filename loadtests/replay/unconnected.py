"""Why there is no connection: by fault of the target, or of the machine that the generator runs on."""

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
"""Errors that are no fault of the target, and what helps."""


class OwnLimit(OSError):
    """The generator's machine takes no more connections: what would have been measured from here on is its own."""


def told(error: OSError) -> str:
    """In words. The numbers of TLS errors are not those of the system."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error) or "lost"


def own_limit(error: OSError, connections: int) -> OwnLimit | None:
    """The limit that stops a generator with so many connections; None where the target is at fault."""
    if isinstance(error, ssl.SSLError) or error.errno not in OWN_LIMITS:
        return None
    return OwnLimit(
        f"the generator could open no more than {connections:,} connections ({told(error)}), so nothing is reported: "
        f"{OWN_LIMITS[error.errno]}"
    )
