"""A DNS server on loopback with records that tests change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dnslib import QTYPE, RCODE, RR, DNSRecord
from dnslib.server import BaseResolver, DNSServer


class Zone(BaseResolver):
    """Answers from `records`; (name, type) pairs without any are NXDOMAIN if the name has none at all."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[object]] = {}
        self.additional: list[RR] = []
        self.ttl = 0
        self.ttls: dict[str, int] = {}
        """By name: another TTL."""
        self.rcode: int | None = None
        self.awake = threading.Event()
        self.awake.set()
        self.asked = 0

    def resolve(self, request: DNSRecord, handler: object) -> DNSRecord:
        self.asked += 1
        self.awake.wait(60)
        reply = request.reply()
        name, kind = str(request.q.qname), QTYPE[request.q.qtype]
        if self.rcode is not None:
            reply.header.rcode = self.rcode
            return reply
        if all(known != name for known, _ in self.records):
            reply.header.rcode = RCODE.NXDOMAIN
        while alias := self.records.get((name, "CNAME")):
            reply.add_answer(RR(name, QTYPE.CNAME, rdata=alias[0], ttl=self.ttls.get(name, self.ttl)))
            name = str(alias[0])
        for data in self.records.get((name, kind), ()):
            reply.add_answer(RR(name, getattr(QTYPE, kind), rdata=data, ttl=self.ttls.get(name, self.ttl)))
        if kind == "SRV":
            for record in self.additional:
                reply.add_ar(record)
        return reply


@contextmanager
def served() -> Iterator[tuple[Zone, str]]:
    """A server on loopback, and its address."""
    zone = Zone()
    server = DNSServer(zone, address="127.0.0.1", port=0, logger=_Silent())
    server.start_thread()
    try:
        yield zone, f"127.0.0.1:{server.server.server_address[1]}"
    finally:
        zone.awake.set()
        server.stop()
        server.server.server_close()


class _Silent:
    def __getattr__(self, name: str) -> object:
        return lambda *_: None
