"""Replicas from DNS: each address of a name, or each target of its SRV records. Asked in a thread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import dns.exception
import dns.name
import dns.rdatatype
import dns.resolver

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


class DnsFollower(Follower):
    """Asks for a name again and again.

    Addresses are asked of the operating system, which knows /etc/hosts and search domains, but tells no TTL. SRV
    records, and names at a server of their own, are asked by dnspython.
    """

    def __init__(self, source: DnsSource, discovery: Discovery, tools: SourceTools) -> None:
        super().__init__(discovery, tools)
        self._source = source
        # A resolver that hangs keeps a thread, so each name has one of its own.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"dns-{source.name}")

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                asked = loop.run_in_executor(self._thread, self.ask)
                try:
                    await asyncio.wait((asked,), timeout=REPORT_S)
                    if not asked.done():
                        self._tools.failed(f"{self._source.name}: no answer within {REPORT_S:g} s")
                    answer = await asked
                    # A name without addresses may be one that the server does not know yet or any more.
                    urls = frozenset(self._url(authority(host, port)) for host, port in answer.addresses)
                    self._tools.told(Listing(urls, is_certain=bool(urls)))
                    pause_s = self.pause_s(answer)
                except SourceError as error:
                    self._tools.failed(str(error))
                    pause_s = self._source.interval_s
                await asyncio.sleep(pause_s)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

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
                return self._addresses(self._resolver(), source.name, source.port)
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
        told: dict[dns.name.Name, set[str]] = {}
        for rrset in answer.response.additional:
            if rrset.rdtype in _FAMILIES:
                told.setdefault(rrset.name, set()).update(record.address for record in rrset)
        addresses: set[tuple[str, int]] = set()
        for record in answer.rrset:
            hosts = told.get(record.target)
            if hosts is None:
                addresses |= self._addresses(resolver, record.target, record.port).addresses
            else:
                addresses |= {(host, record.port) for host in hosts}
        return Answer(frozenset(addresses), answer.rrset.ttl)

    def _addresses(self, resolver: dns.resolver.Resolver, name: str | dns.name.Name, port: int) -> Answer:
        """The addresses of both families. A family that fails fails all, since its addresses would else be missing."""
        found = list(self._by_family(resolver, name))
        return Answer(
            frozenset((host, port) for hosts, _ in found for host in hosts), min((ttl for _, ttl in found), default=0.0)
        )

    @staticmethod
    def _by_family(resolver: dns.resolver.Resolver, name: str | dns.name.Name) -> Iterator[tuple[list[str], float]]:
        for family in _FAMILIES:
            answer = resolver.resolve(name, family, raise_on_no_answer=False)
            if answer.rrset is not None:
                yield [record.address for record in answer.rrset], float(answer.rrset.ttl)
