"""Checks the headers Host and Origin. Without these checks, any web page could use a keyless gateway on loopback.

A page whose own host name points at 127.0.0.1 (DNS rebinding) sends that name in Host. A form or a `text/plain` request
of any page sends the page's Origin. If the policy has keys, a page needs a key like any client. Pages that the policy
lists may read answers (CORS), but never with cookies or other credentials. So a browser never sends a stored key for a
page, even if every page is listed.
"""

from __future__ import annotations

from typing import Final

from gateway.core.policy import Policy
from gateway.core.results import Reason
from gateway.policy.sections.hosts import is_known, is_loopback
from gateway.wire.errors.replies import Problem
from gateway.wire.http.cors import cors_lines
from gateway.wire.http.headers import ORIGIN, RequestHead

EVERY_ORIGIN: Final = b"*"
EVERY_PORT: Final = b":*"
MAX_REMEMBERED: Final = 64
MAX_SHOWN: Final = 100


class BrowserAccess:
    """Host and Origin rules of one policy, for a gateway that listens on `bound_host`."""

    __slots__ = (
        "_any_origin",
        "_hosts",
        "_is_keyless",
        "_loopback",
        "_names",
        "_origins",
        "_ports",
        "_schemes",
        "_shuts_hosts",
    )

    def __init__(self, policy: Policy, bound_host: str) -> None:
        self._is_keyless = not policy.keys
        self._loopback = is_loopback(bound_host)
        self._names = frozenset(policy.host_names)
        self._origins = frozenset(origin.encode() for origin in policy.origins)
        self._any_origin = EVERY_ORIGIN in self._origins
        self._ports = frozenset(
            origin.removesuffix(EVERY_PORT) for origin in self._origins if origin.endswith(EVERY_PORT)
        )
        """Origins without their port that are listed with every port."""
        self._schemes = frozenset(origin for origin in self._origins if origin.endswith(b"://"))
        """Schemes, with `://`, of which every page is listed."""
        # On addresses other than loopback, the gateway knows its own name only from the policy.
        self._shuts_hosts = self._is_keyless and (self._loopback or bool(self._names))
        self._hosts: set[bytes] = set()
        """Cache of accepted hosts, because most requests have the same host."""

    def problem(self, head: RequestHead) -> Problem | None:
        """Why a request that needs no key is refused; None if it is accepted."""
        host = head.fields.get(b"host")
        # Only HTTP/1.0 requests may lack a Host, and no browser sends HTTP/1.0.
        if self._shuts_hosts and host is not None and host not in self._hosts and not self._is_known(host):
            return Problem(Reason.HOST_NOT_ALLOWED, self._host_message(host))
        if head.has_origin and self._is_keyless and not self._is_own(head.fields[ORIGIN], host):
            return self._foreign(head.fields[ORIGIN])
        return None

    def greet(self, head: RequestHead) -> None:
        """Set the CORS header lines of the answer, if the request comes from a listed page."""
        origin = head.fields[ORIGIN]
        if self._any_origin:
            head.cors = cors_lines(EVERY_ORIGIN)
        elif self._is_listed(origin.lower()):
            head.cors = cors_lines(origin)

    def preflight_problem(self, head: RequestHead) -> Problem | None:
        """Why a page may not send a request; None if it may. A preflight carries no key and may name any path."""
        return self.problem(head) or (None if head.cors else self._foreign(head.fields[ORIGIN]))

    def _is_known(self, host: bytes) -> bool:
        if not is_known(host.decode("latin-1"), self._names, any_address=not self._loopback):
            return False
        if len(self._hosts) < MAX_REMEMBERED:
            self._hosts.add(host)
        return True

    def _is_own(self, origin: bytes, host: bytes | None) -> bool:
        """Whether the origin is the gateway's own: it equals the requested host and port, and these are known names of
        the gateway. A listed origin counts too.
        """
        origin = origin.lower()
        if self._is_listed(origin):
            return True
        return self._shuts_hosts and host is not None and origin.partition(b"://")[2] == host.lower()

    def _is_listed(self, origin: bytes) -> bool:
        """Whether the policy lists an origin, in lower case."""
        if origin in self._origins:
            return True
        scheme, mark, _ = origin.partition(b"://")
        if scheme + mark in self._schemes:
            return True
        name, _, port = origin.rpartition(b":")
        return origin in self._ports or (port.isdigit() and name in self._ports)

    def _host_message(self, host: bytes) -> str:
        known = "localhost or an address of loopback" if self._loopback else "localhost or an address"
        name = _shown(host.rpartition(b":")[0] or host)
        return (
            f"The Host header says {_shown(host)!r}. Without keys the gateway answers to {known} only: "
            f"use one as base URL, or allow the name: {_ways('names', '--name', name)}"
        )

    @staticmethod
    def _foreign(origin: bytes) -> Problem:
        return Problem(
            Reason.ORIGIN_NOT_ALLOWED,
            f"The Origin header says {_shown(origin)!r}, a web page that may not use the gateway: "
            f"allow it, if it is yours: {_ways('origins', '--origin', _shown(origin))}",
        )


def _ways(field: str, option: str, value: str) -> str:
    """How to allow a host or a page, with a policy and without one."""
    written = f" {value}" if value.isprintable() and not any(sign in value for sign in " '\"\\$`<>") else ""
    return f"list it in `listen.{field}` of the policy, or without a policy give `tailgate serve {option}{written}`."


def _shown(value: bytes) -> str:
    return value[:MAX_SHOWN].decode("latin-1")
