"""Decides which Host headers a port accepts. A web page must not reach the port under the page's own host name (DNS
rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final

LOCALHOST: Final = "localhost"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::[0-9]{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`: it is a loopback address or the name localhost."""
    if host.lower() == LOCALHOST:
        return True
    address = _address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address is not None and (mapped or address).is_loopback


def is_known(host: str, names: Collection[str], *, any_address: bool) -> bool:
    """Whether a Host header without its port is accepted: localhost, one of `names` (in lower case), or an address.

    With `any_address` False, only loopback addresses are accepted. Addresses are safe, because no page can change where
    they lead.
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
