"""The Host headers that a port accepts, so that a web page cannot reach it under a name of its own (DNS rebinding)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final

LOCALHOST: Final = "localhost"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::[0-9]{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; of names, only localhost is trusted."""
    if host.lower() == LOCALHOST:
        return True
    address = _address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address is not None and (mapped or address).is_loopback


def is_known(host: str, names: Collection[str], *, any_address: bool) -> bool:
    """Whether a Host header, less its port, is localhost, one of `names` (in lower case), or an address.

    Of addresses only loopback ones count, unless `any_address` is set: a page cannot point an address elsewhere.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found[1].lower()
    return is_loopback(name) or name in names or (any_address and _address(name) is not None)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
