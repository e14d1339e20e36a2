"""Whether serving a policy on an address would hand the replicas to strangers."""

from __future__ import annotations

import ipaddress

from gateway.core.rules import Policy


def exposure_error(policy: Policy, host: str) -> str | None:
    """Why `policy` must not be served on `host`, or None: without keys, only loopback is safe."""
    if policy.keys or policy.open_on_any_address or is_loopback(host):
        return None
    return (
        f"refusing to serve without keys on {host or 'every address'}: whoever can reach it could use the replicas. "
        "Add keys to the policy (`tailgate key new`), or serve on 127.0.0.1, "
        "or say `listen: {open_on_any_address: true}` in the policy"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; names other than localhost are not trusted to be."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
