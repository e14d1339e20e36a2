"""Checks that serving a policy on an address does not open the replicas to strangers."""

from __future__ import annotations

from gateway.core.policy import Policy
from gateway.policy.sections.hosts import is_loopback


def exposure_error(policy: Policy, host: str) -> str | None:
    """Why `policy` must not be served on `host`; None if it may. Without keys, only loopback is safe."""
    if policy.keys or policy.open_on_any_address or is_loopback(host):
        return None
    return (
        f"refusing to serve without keys on {host or 'every address'}: anybody there could use the replicas. "
        "Add keys to the policy (`tailgate key new`), or serve on 127.0.0.1, "
        "or write `listen: {open_on_any_address: true}` into the policy"
    )
