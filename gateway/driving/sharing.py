"""Connects a controller with the store over which gateways share loads, limits and learned facts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

from gateway.core.estimators.memory import objects_in
from gateway.core.results import Callback
from gateway.core.sample import GatewayLoad, LimitLease
from gateway.core.snapshot import Trust
from gateway.driving.leases import Leases
from gateway.driving.local_driver import LocalDriver
from gateway.driving.state_bytes import (
    UnreadableStateError,
    batched,
    line_of,
    lines_in_turns,
    state_from_bytes,
    with_header,
)
from gateway.driving.store import Store
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.metrics.tenant_demand import TenantDemand

log = logging.getLogger("tailgate")

FACTS_KEY: Final = "{tailgate}:facts"
FACTS_EVERY_S: Final = 5.0
FACTS_KEEP_S: Final = 3600
POLICY_KEY: Final = "{tailgate}:policy:"
"""Followed by the name of a gateway: the digest of its policy."""
POLICY_KEEP_S: Final = 15
OF_POOLS: Final = ("at", "pools", "lengths", "prompts", "margins")
OF_REPLICAS: Final = ("pool", "url", "model", "limit", "kv", "budget")
"""Facts about engines and traffic. Rates, quotas, drains and ejections are each gateway's own."""


class Sharing:
    """Tells the other gateways, and hears from them, every few seconds.

    Learned facts have the form of a state file: a gateway that has learned nothing begins with them. The digest of the
    policy shows which gateways have another one.
    """

    def __init__(self, store: Store, driver: LocalDriver, unix_s: Callable[[], float]) -> None:
        self._store = store
        self._driver = driver
        self._unix_s = unix_s
        self._apart: list[str] = []
        """Gateways that had another policy at the last look."""

    def parts(self) -> dict[str, Coroutine[object, object, None]]:
        """The tasks that exchange loads and facts, by name."""
        return {"exchange of loads": self._store.run(), "exchange of facts": self._run()}

    async def begin(self) -> None:
        """Hear the other gateways, and take over the facts in the store. Called before the first request."""
        await self._store.begin()
        await self._compare_policies()
        if not self._is_cold():
            return
        data = await self._store.ask("GET", FACTS_KEY)
        if not isinstance(data, bytes):
            return
        try:
            saved = state_from_bytes(data)
        except UnreadableStateError as error:
            log.warning("store: %s %s; the gateway starts with nothing learned", FACTS_KEY, error)
            return
        away_s = max(0.0, self._unix_s() - saved.written_unix_s)
        self._driver.recall(saved.memory, away_s)
        log.info("store: the gateway knows what another one had learned %.0f s ago", away_s)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FACTS_EVERY_S)
            try:
                if not self._is_cold():
                    await self._store.ask("SET", FACTS_KEY, await self._data(), "EX", FACTS_KEEP_S)
                await self._compare_policies()
            except Exception as bug:  # noqa: BLE001 - a bug costs this write
                self._driver.supervisor.caught(Callback.WATCH, bug)

    async def _compare_policies(self) -> None:
        """Tell the digest of the own policy, and log which gateways have another, whenever that changes."""
        own = self._driver.controller.policy.digest
        others = self._store.others()
        await self._store.ask("SET", f"{POLICY_KEY}{self._store.name}", own, "EX", POLICY_KEEP_S)
        told = await self._store.ask("MGET", *(f"{POLICY_KEY}{name}" for name in others)) if others else []
        if not isinstance(told, list):
            return
        apart = [name for name, digest in zip(others, told, strict=True) if digest not in (None, own.encode())]
        if apart != self._apart:
            self._apart = apart
            if apart:
                told = "store: the policy of %s is not the one of %s, this gateway: give all the same file"
                log.warning(told, ", ".join(apart), self._store.name)
            else:
                log.info("store: all gateways have the same policy")

    def _is_cold(self) -> bool:
        forecaster = self._driver.controller.forecaster
        pools = [pool.spec.name for pool in self._driver.controller.state.fleet]
        return all(forecaster.trust(name) is Trust.COLD for name in pools)

    async def _data(self) -> bytes:
        controller = self._driver.controller
        lines = [line_of("memory", _only(OF_POOLS, controller.memory(self._driver.clock())))]
        batches = batched(name for _, name, _, _ in controller.states())
        replicas = ({name: _only(OF_REPLICAS, controller.memory_of(name)) for name in names} for names in batches)
        lines += await lines_in_turns("replicas", replicas)
        return with_header(b"".join(lines), self._unix_s())


def _only(names: tuple[str, ...], memory: object) -> Mapping[str, object]:
    known = objects_in(memory)
    return {name: known[name] for name in names if name in known}


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
