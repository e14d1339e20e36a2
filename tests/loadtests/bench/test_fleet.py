"""The change of a large fleet under load, in small."""

from __future__ import annotations

import asyncio

import uvloop

from loadtests.bench.fleet import Fleet, FleetResult, run_fleet
from loadtests.bench.upstream import Wheel, listen


def test_fleet_bench_replaces_replicas_under_load_and_reports_the_lag_of_the_loop() -> None:
    async def measured() -> FleetResult:
        servers = await listen([0] * 10, Wheel(0.02))
        ports = tuple(server.sockets[0].getsockname()[1] for server in servers)
        result = await run_fleet(Fleet(ports, 1, rate=50.0, seconds=2.0, settle_s=0.1))
        for server in servers:
            server.close()
        return result

    result = uvloop.run(asyncio.wait_for(measured(), 60.0))
    assert result.errors == []
    assert result.requests > 0
    assert 0.0 <= result.lag_p99_s <= result.lag_max_s
