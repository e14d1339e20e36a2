"""A replica's numbers outside of any range are ignored and counted, and break nothing."""

from __future__ import annotations

import httpx
import pytest

from tests.fleet.replicas import FakeReplica, answer, replica

from .conftest import GatewayFactory
from .raw import MODEL
from .waiting import until

POLICY = """
apiVersion: tailgate/v1
models: {{"{model}": {{pools: [main]}}, "*": {{pools: [main]}}}}
pools:
  main: {{replicas: [{url}], engine: vllm, health: {{interval: 20ms, scrape_interval: 20ms}}}}
tiers: {{free: {{}}}}
defaults: {{tier: free}}
"""
INFINITE = 'vllm:num_requests_running{engine="0"} 1e308\nvllm:num_requests_running{engine="1"} 1e308\n'


def _of(fake: FakeReplica) -> str:
    return POLICY.format(model=MODEL, url=fake.url)


@pytest.mark.parametrize("page", [INFINITE, "vllm:num_requests_waiting 1e300\n"], ids=["infinite-sum", "1e300"])
async def test_metrics_page_with_absurd_numbers_is_counted_as_garbage(gateway: GatewayFactory, page: str) -> None:
    async with replica() as fake:
        fake.answers["/metrics"] = answer(page)
        gw = await gateway(_of(fake))
        await until(lambda: fake.paths().count("/metrics") > 2)
        async with httpx.AsyncClient(base_url=gw.admin_url) as admin:
            metrics, state = await admin.get("/metrics"), await admin.get("/admin/state")
    assert (metrics.status_code, state.status_code) == (200, 200)
    assert 'tailgate_fleet_failures_total{fault="garbage",pool="main",reading="metrics"' in metrics.text
    assert state.json()["unreadable"][0]["errors"]["metrics"].startswith("garbage: vllm:num_requests_")
    assert not gw.broken.is_set()


async def test_model_list_with_a_length_beyond_64_bits_breaks_no_page(gateway: GatewayFactory) -> None:
    async with replica() as fake:
        fake.answers["/v1/models"] = answer('{"data": [{"id": "m", "max_model_len": 9223372036854775808}]}')
        gw = await gateway(_of(fake))
        await until(lambda: "/v1/models" in fake.paths())
        async with httpx.AsyncClient(base_url=gw.url) as client:
            listed, one = await client.get("/v1/models"), await client.get("/v1/models/m")
    assert (listed.status_code, one.status_code) == (200, 200)
    assert [model["id"] for model in listed.json()["data"]] == [MODEL]
    assert not gw.broken.is_set()
