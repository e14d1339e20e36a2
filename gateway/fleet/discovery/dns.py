"""Replicas from DNS: each address of a name, or each target of its SRV records. Asked in a thread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Final

import dns.exception
import dns.name
import dns.rdatatype
import dns.resolver
import dns.rrset

from gateway.core.pool_spec import Discovery, DnsRecord, DnsSource
from gateway.fleet.discovery.source import Follower, Listing, SourceError, SourceTools, authority

TIMEOUT_S: Final = 10.0
"""A question that we send ourselves is given up after this time."""
REPORT_S = 5.0
"""A resolver that takes longer is reported as failing. Its answer still counts when it comes."""
_NOT_THERE: Final = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_FAMILIES: Final = (dns.rdatatype.A, dns.rdatatype.AAAA)


@dataclass(frozen=True, slots=True)
class Answer:
    """(host, port) pairs, and how long they hold in seconds. No pairs: the name does not exist."""

    addresses: frozenset[tuple[str, int]]
    ttl_s: float = 0.0
    is_whole: bool = True
    """Whether each target of SRV records has addresses."""


class DnsFollower(Follower):
    """Asks for a name again and again.

    Addresses are asked of the operating system, which knows /etc/hosts and search domains, but tells no TTL. SRV
    records, and names at a server of their own, are asked by dnspython.
    """

    def __init__(self, source: DnsSource, discovery: Discovery, tools: SourceTools) -> None:
        super().__init__(discovery, tools)
        self._source = source

    async def run(self) -> None:
        while True:
            asked = _in_thread(self.ask)
            try:
                await asyncio.wait((asked,), timeout=REPORT_S)
                if not asked.done():
                    self._tools.failed(f"{self._source.name}: no answer within {REPORT_S:g} s")
                answer = await asked
                # A name without addresses may be one that the server does not know yet or any more.
                urls = frozenset(self._url(authority(host, port)) for host, port in answer.addresses)
                self._tools.told(Listing(urls, is_certain=bool(urls) and answer.is_whole))
                pause_s = self.pause_s(answer)
            except SourceError as error:
                self._tools.failed(str(error))
                pause_s = self._source.interval_s
            finally:
                asked.cancel()  # if this is cancelled, nobody hears an answer that comes later
            await asyncio.sleep(pause_s)

    def pause_s(self, answer: Answer) -> float:
        """Seconds until the next question after an answer."""
        return max(self._source.interval_s, answer.ttl_s)

    def ask(self) -> Answer:
        """Ask once, which blocks. Raises `SourceError`."""
        source = self._source
        try:
            if source.record is DnsRecord.SRV:
                return self._services()
            if source.server:
                rrsets = _both_families(self._resolver(), source.name)
                return Answer(frozenset((address, source.port) for address in _addresses(rrsets)), _ttl_s(rrsets))
        except dns.resolver.NXDOMAIN:
            return Answer(frozenset())
        except dns.exception.DNSException as error:
            raise SourceError(f"{source.name}: {error}") from None
        try:
            found = socket.getaddrinfo(source.name, source.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in _NOT_THERE:
                return Answer(frozenset())
            raise SourceError(f"{source.name}: {error.strerror}") from None
        except (OSError, UnicodeError) as error:
            raise SourceError(f"{source.name}: {error}") from None
        return Answer(frozenset((str(address[0]), source.port) for *_, address in found))

    def _resolver(self) -> dns.resolver.Resolver:
        server = self._source.server
        try:
            resolver = dns.resolver.Resolver(configure=not server)
        except OSError as error:
            raise SourceError(f"the settings of the resolver cannot be read: {error}") from None
        resolver.lifetime = TIMEOUT_S
        if server:
            host, _, port = server.rpartition(":")
            resolver.nameservers, resolver.port = [host.strip("[]")], int(port)
        return resolver

    def _services(self) -> Answer:
        resolver = self._resolver()
        answer = resolver.resolve(self._source.name, dns.rdatatype.SRV, raise_on_no_answer=False)
        if answer.rrset is None:
            return Answer(frozenset())
        told: dict[dns.name.Name, list[dns.rrset.RRset]] = {}
        for rrset in answer.response.additional:
            if rrset.rdtype in _FAMILIES:
                told.setdefault(rrset.name, []).append(rrset)
        found: set[tuple[str, int]] = set()
        ttl_s, is_whole = float(answer.chaining_result.minimum_ttl), True
        for record in answer.rrset:
            rrsets = told.get(record.target, [])
            with suppress(dns.resolver.NXDOMAIN):
                rrsets = rrsets or _both_families(resolver, record.target)
            found |= {(address, record.port) for address in _addresses(rrsets)}
            ttl_s, is_whole = min(ttl_s, _ttl_s(rrsets)), is_whole and bool(rrsets)
        return Answer(frozenset(found), ttl_s, is_whole)


def _both_families(resolver: dns.resolver.Resolver, name: str | dns.name.Name) -> list[dns.rrset.RRset]:
    """A family that fails fails both, since its addresses would else be missing."""
    found: list[dns.rrset.RRset] = []
    for family in _FAMILIES:
        answer = resolver.resolve(name, family, raise_on_no_answer=False)
        if answer.rrset is not None:
            answer.rrset.update_ttl(answer.chaining_result.minimum_ttl)  # aliases may hold for a shorter time
            found.append(answer.rrset)
    return found


def _addresses(rrsets: list[dns.rrset.RRset]) -> list[str]:
    return [record.address for rrset in rrsets for record in rrset]


def _ttl_s(rrsets: list[dns.rrset.RRset]) -> float:
    return min([float(rrset.ttl) for rrset in rrsets], default=0.0)


def _in_thread(ask: Callable[[], Answer]) -> asyncio.Future[Answer]:
    """Ask in a thread for which the end of the process does not wait, because a resolver may hang for long."""
    answer: Future[Answer] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(answer)
