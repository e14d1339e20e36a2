"""Connects a controller with the store over which gateways share loads and limits."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.sample import GatewayLoad, LimitLease
from gateway.driving.leases import Leases
from gateway.driving.local_driver import LocalDriver
from gateway.driving.store import Store
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.metrics.tenant_demand import TenantDemand


def shared_store(
    url: str, driver: LocalDriver, metrics: Metrics, leased: Callable[[tuple[LimitLease, ...]], None]
) -> Store:
    """The store at `url`. `leased`: called after the controller has taken leases. Raises StoreError."""
    controller = driver.controller

    def load(interval_s: float) -> GatewayLoad:
        return controller.load(interval_s, driver.clock())

    def told(source: str, other: GatewayLoad) -> None:
        driver.call(controller.told, (source, other))

    def share(gateways: int, leases: tuple[LimitLease, ...]) -> None:
        driver.call(controller.share_limits, (gateways, leases))
        leased(leases)

    store = Store(url, load, told)
    driver.demand = metrics.demand = TenantDemand()
    driver.call(controller.share_limits, (0, ()))
    store.leases = Leases(store.name, driver.demand, controller.limit_uses, share, driver.clock)
    return store
