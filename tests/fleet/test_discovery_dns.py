"""Addresses are asked of real DNS servers, which change, fail and sleep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from dnslib import AAAA, CNAME, QTYPE, RCODE, RR, SRV, A

from gateway.core.pool_spec import Discovery, DnsRecord, DnsSource
from gateway.fleet.discovery.dns import Answer, DnsFollower
from gateway.fleet.discovery.source import Listing, SourceError, SourceTools

from .replicas import until
from .zone import Zone, served


@pytest.fixture
def zone() -> Iterator[tuple[Zone, str]]:
    with served() as both:
        yield both


def follower(source: DnsSource, scheme: str = "http") -> tuple[DnsFollower, list[Listing], list[str]]:
    told: list[Listing] = []
    failed: list[str] = []
    return DnsFollower(source, Discovery((source,), scheme), SourceTools(told.append, failed.append)), told, failed


@asynccontextmanager
async def following(one: DnsFollower) -> AsyncIterator[None]:
    task = asyncio.create_task(one.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


def test_each_address_of_both_families_is_a_replica(zone: tuple[Zone, str]) -> None:
    records, server = zone
    records.records = {
        ("vllm.example.", "A"): [A("10.0.0.1"), A("10.0.0.2")],
        ("vllm.example.", "AAAA"): [AAAA("fd00::1")],
    }
    records.ttl = 7
    answer = follower(DnsSource("vllm.example", 8000, server=server))[0].ask()
    assert answer.addresses == {("10.0.0.1", 8000), ("10.0.0.2", 8000), ("fd00::1", 8000)}
    assert answer.ttl_s == 7


@pytest.mark.parametrize("has_additional", [False, True])
def test_each_target_of_srv_records_is_a_replica_at_its_port(zone: tuple[Zone, str], has_additional: bool) -> None:
    records, server = zone
    name = "_http._tcp.vllm.example."
    records.records = {(name, "SRV"): [SRV(0, 1, 8001, "a.example."), SRV(0, 1, 8002, "b.example.")]}
    addresses = {"a.example.": "10.0.0.1", "b.example.": "10.0.0.2"}
    if has_additional:
        records.additional = [RR(host, QTYPE.A, rdata=A(at)) for host, at in addresses.items()]
    else:
        records.records |= {(host, "A"): [A(at)] for host, at in addresses.items()}
    answer = follower(DnsSource(name, record=DnsRecord.SRV, server=server))[0].ask()
    assert answer.addresses == {("10.0.0.1", 8001), ("10.0.0.2", 8002)}
    assert records.asked == (1 if has_additional else 5)


def test_target_without_addresses_takes_none_from_the_others_and_the_shortest_ttl_counts(
    zone: tuple[Zone, str],
) -> None:
    records, server = zone
    name = "_http._tcp.vllm.example."
    records.records = {
        (name, "SRV"): [SRV(0, 1, 8001, "gone.example."), SRV(0, 1, 8002, "b.example.")],
        ("b.example.", "A"): [A("10.0.0.2")],
    }
    records.ttls = {name: 86400}
    records.ttl = 7
    answer = follower(DnsSource(name, record=DnsRecord.SRV, server=server))[0].ask()
    assert answer == Answer(frozenset({("10.0.0.2", 8002)}), 0.0, is_whole=False)
    del records.records[name, "SRV"][0]
    answer = follower(DnsSource(name, record=DnsRecord.SRV, server=server))[0].ask()
    assert answer == Answer(frozenset({("10.0.0.2", 8002)}), 7.0)


def test_alias_that_holds_for_a_shorter_time_than_its_addresses_counts(zone: tuple[Zone, str]) -> None:
    records, server = zone
    srv = "_http._tcp.vllm.example."
    records.records = {
        ("vllm.example.", "CNAME"): [CNAME("blue.example.")],
        (srv, "CNAME"): [CNAME("_http._tcp.blue.example.")],
        ("_http._tcp.blue.example.", "SRV"): [SRV(0, 1, 8001, "vllm.example.")],
        ("blue.example.", "A"): [A("10.0.0.1")],
    }
    records.ttl = 86400
    records.ttls = {"vllm.example.": 7}
    answer = follower(DnsSource("vllm.example", 8000, server=server))[0].ask()
    assert answer == Answer(frozenset({("10.0.0.1", 8000)}), 7.0)
    records.ttls |= {srv: 5}
    answer = follower(DnsSource(srv, record=DnsRecord.SRV, server=server))[0].ask()
    assert answer == Answer(frozenset({("10.0.0.1", 8001)}), 5.0)


def test_name_that_does_not_exist_has_no_addresses(zone: tuple[Zone, str]) -> None:
    _, server = zone
    assert follower(DnsSource("nobody.example", 1, server=server))[0].ask().addresses == frozenset()
    srv = DnsSource("nobody.example", record=DnsRecord.SRV, server=server)
    assert follower(srv)[0].ask().addresses == frozenset()


def test_failure_of_one_family_fails_the_question(zone: tuple[Zone, str]) -> None:
    records, server = zone
    records.rcode = RCODE.SERVFAIL
    with pytest.raises(SourceError, match=r"vllm\.example: .*SERVFAIL"):
        follower(DnsSource("vllm.example", 8000, server=server))[0].ask()


def test_addresses_are_asked_of_the_system_without_a_server() -> None:
    answer = follower(DnsSource("localhost", 8000))[0].ask()
    assert ("127.0.0.1", 8000) in answer.addresses
    assert answer.addresses <= {("127.0.0.1", 8000), ("::1", 8000)}
    assert follower(DnsSource("nobody.invalid", 8000))[0].ask().addresses == frozenset()


async def test_changed_answers_are_told_and_failures_tell_nothing(zone: tuple[Zone, str]) -> None:
    records, server = zone
    records.records = {("vllm.example.", "A"): [A("10.0.0.1")]}
    one, told, failed = follower(DnsSource("vllm.example", 8000, server=server, interval_s=0.01), "https")
    async with following(one):
        await until(lambda: bool(told))
        assert told[-1] == Listing(frozenset({"https://10.0.0.1:8000"}))
        records.rcode = RCODE.SERVFAIL
        await until(lambda: bool(failed))
        count = len(told)
        records.rcode = None
        records.records = {("vllm.example.", "A"): [A("10.0.0.2")]}
        await until(lambda: len(told) > count)
        assert told[count] == Listing(frozenset({"https://10.0.0.2:8000"}))
        records.records = {}
        await until(lambda: not told[-1].urls)
        assert not told[-1].is_certain


async def test_slow_server_is_reported_and_its_late_answer_counts(
    zone: tuple[Zone, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records, server = zone
    records.records = {("vllm.example.", "A"): [A("10.0.0.1")]}
    one, told, failed = follower(DnsSource("vllm.example", 8000, server=server, interval_s=0.01))
    monkeypatch.setattr("gateway.fleet.discovery.dns.REPORT_S", 0.01)
    records.awake.clear()
    async with following(one):
        await until(lambda: bool(failed))
        assert "no answer within" in failed[0]
        assert not told
        records.awake.set()
        await until(lambda: bool(told))


async def test_question_that_hangs_keeps_nothing_that_the_end_of_the_process_waits_for(zone: tuple[Zone, str]) -> None:
    records, server = zone
    records.awake.clear()
    before = set(threading.enumerate())
    async with following(follower(DnsSource("vllm.example", 8000, server=server))[0]):
        await until(lambda: bool(records.asked))
        assert all(thread.daemon for thread in {*threading.enumerate()} - before)


def test_answer_is_kept_for_its_ttl_if_that_is_longer_than_the_interval() -> None:
    one, _, _ = follower(DnsSource("vllm.example", 8000, interval_s=5.0))
    assert [one.pause_s(Answer(frozenset(), ttl_s)) for ttl_s in (0.0, 30.0)] == [5.0, 30.0]
