"""Follows the sources of all pools, and says which replicas they have now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.core.policy import Policy
from gateway.core.pool_spec import Discovery, DnsSource, FileSource, KubernetesSource, ReplicaSpec, Source, replicas_at
from gateway.fleet.discovery.dns import DnsFollower
from gateway.fleet.discovery.file import FileFollower
from gateway.fleet.discovery.kubernetes import KubernetesFollower
from gateway.fleet.discovery.membership import Membership
from gateway.fleet.discovery.source import Follower, Listing, SourceTools

log = logging.getLogger("tailgate.fleet")

SETTLE_S: Final = 0.5
"""Seconds between two looks at addresses that are no longer listed: has their health check failed meanwhile?"""

MAX_NAMED: Final = 5
"""A line of the log names at most this many replicas."""

FOLLOWERS: Final[Mapping[type, Callable[..., Follower]]] = {
    FileSource: FileFollower,
    DnsSource: DnsFollower,
    KubernetesSource: KubernetesFollower,
}
"""By kind of source: the class that follows it, made of the source, the discovery and the tools."""
KINDS: Final[Mapping[type, str]] = {FileSource: "file", DnsSource: "dns", KubernetesSource: "kubernetes"}
"""Name of each kind of source in the policy. A metric label."""


@dataclass(slots=True)
class _Followed:
    """One source of one pool."""

    kind: str
    listing: Listing | None = None
    error: str = ""
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Pool:
    """A pool with sources."""

    discovery: Discovery
    membership: Membership
    sources: dict[Source, _Followed] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    """Found addresses that another replica has: in another pool, or with another scheme."""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """State of one source. `addresses`: in its last listing; None before the first. `error`: of the last failure, empty
    after a success.
    """

    pool: str
    kind: str
    addresses: int | None
    error: str
    held: int
    """Addresses that the pool's sources no longer list, and that stay for the present."""


class ReplicaFinder:
    """Finds the replicas of pools with `discover`.

    `on_change` is called after the found replicas of a pool have changed. A source that fails changes nothing.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        is_out: Callable[[str], bool],
        on_change: Callable[[], None],
        on_bug: Callable[[Exception], None],
    ) -> None:
        """`is_out`: whether the replica of a name gets no requests, by its own health."""
        self._clock = clock
        self._is_out = is_out
        self._on_change = on_change
        self._on_bug = on_bug
        self._pools: dict[str, _Pool] = {}
        self._is_running = False
        self._begun = asyncio.Event()
        """Set when every source has told something, or failed."""

    def configure(self, policy: Policy) -> None:
        """Follow the sources of `policy`. A pool whose sources change keeps its addresses until they have told
        theirs.
        """
        old, self._pools = self._pools, {}
        for name, spec in policy.pools.items():
            discovery, known = spec.discovery, old.get(name)
            if discovery is None:
                continue
            if known is not None and known.discovery == discovery:
                self._pools[name] = old.pop(name)
                continue
            membership = Membership(discovery.hold_down_s, () if known is None else known.membership.urls)
            pool = self._pools[name] = _Pool(discovery, membership)
            pool.sources = {source: _Followed(KINDS[type(source)]) for source in discovery.sources}
        for gone in old.values():
            for followed in gone.sources.values():
                if followed.task is not None:
                    followed.task.cancel()
        self._start()

    async def run(self) -> None:
        """Follow the sources until cancelled."""
        self._is_running = True
        self._start()
        try:
            while True:
                await asyncio.sleep(SETTLE_S)
                self._settle()
        finally:
            self._is_running = False
            for pool in self._pools.values():
                for followed in pool.sources.values():
                    if followed.task is not None:
                        followed.task.cancel()

    async def begun(self) -> None:
        """Wait until every source has told its addresses, or failed to."""
        await self._begun.wait()

    def applied(self, policy: Policy) -> Policy:
        """The policy with the replicas that were found. One that is listed twice counts in the first place."""
        if not self._pools:
            return policy
        names = {spec.name for pool in policy.pools.values() for spec in pool.replicas}
        urls = {spec.url for pool in policy.pools.values() for spec in pool.replicas}
        pools = dict(policy.pools)
        for name, pool in self._pools.items():
            found: list[ReplicaSpec] = []
            elsewhere: set[str] = set()
            for url in pool.membership.urls:
                specs = replicas_at(url, "", pool.discovery.dp, is_found=True)
                if url not in urls and not any(spec.name in names for spec in specs):
                    urls.add(url)
                    names.update(spec.name for spec in specs)
                    found += specs
                elif name in pools and all(spec.url != url for spec in pools[name].replicas):
                    elsewhere.add(url)
            if new := elsewhere - pool.elsewhere:
                log.warning(
                    "pool %s leaves these out, as another replica has the same host, port and path: %s",
                    name,
                    _counted(new),
                )
            pool.elsewhere = elsewhere
            if name in pools:
                pools[name] = replace(pools[name], replicas=(*pools[name].replicas, *found))
        return replace(policy, pools=pools)

    def reports(self) -> tuple[SourceReport, ...]:
        """The state of each source, in the order of the policy."""
        return tuple(
            SourceReport(
                name,
                followed.kind,
                None if followed.listing is None else len(followed.listing.urls),
                followed.error,
                pool.membership.held,
            )
            for name, pool in self._pools.items()
            for followed in pool.sources.values()
        )

    def _start(self) -> None:
        for name, pool in self._pools.items() if self._is_running else ():
            for source, followed in pool.sources.items():
                if followed.task is None:
                    tools = self._tools(name, source, followed)
                    follower = FOLLOWERS[type(source)](source, pool.discovery, tools)
                    followed.task = asyncio.create_task(self._follow(follower), name=f"{followed.kind} of {name}")
        self._look_whether_begun()

    async def _follow(self, follower: Follower) -> None:
        while True:
            try:
                await follower.run()
            except Exception as error:  # noqa: BLE001 - a bug in one source must not end the process
                self._on_bug(error)
                await asyncio.sleep(SETTLE_S)

    def _tools(self, pool: str, source: Source, followed: _Followed) -> SourceTools:
        def told(listing: Listing) -> None:
            if followed.error:
                log.info("pool %s: its source %s can be read again", pool, followed.kind)
            if not listing.urls and (followed.listing is None or followed.listing.urls):
                log.warning("pool %s: its source %s lists no replicas: %s", pool, followed.kind, _name(source))
            followed.listing, followed.error = listing, ""
            self._settle()
            self._look_whether_begun()

        def failed(reason: str) -> None:
            if reason != followed.error:
                stays = "it has found none yet" if followed.listing is None else "its replicas stay as they are"
                log.warning("pool %s: its source %s failed: %s; %s", pool, followed.kind, reason, stays)
            followed.error = reason
            if followed.listing is not None:  # Its last list may have been the first sign of the failure.
                followed.listing = replace(followed.listing, is_certain=False)
            self._look_whether_begun()

        return SourceTools(told, failed)

    def _look_whether_begun(self) -> None:
        followed = [each for pool in self._pools.values() for each in pool.sources.values()]
        if all(each.listing is not None or each.error for each in followed):
            self._begun.set()

    def _settle(self) -> None:
        now, changed = self._clock(), False
        for name, pool in self._pools.items():
            before = pool.membership.urls
            listings: dict[object, Listing | None] = {
                source: followed.listing for source, followed in pool.sources.items()
            }

            def are_out(url: str, pool: _Pool = pool) -> bool:
                return all(self._is_out(spec.name) for spec in replicas_at(url, "", pool.discovery.dp, is_found=True))

            if pool.membership.settle(listings, are_out, now):
                changed = True
                _log_change(name, before, pool.membership.urls)
        if changed:
            self._on_change()


def _name(source: Source) -> str:
    """The name of a source in the policy."""
    if isinstance(source, FileSource):
        return source.path
    return source.name if isinstance(source, DnsSource) else source.service


def _log_change(pool: str, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    added, removed = _counted(set(after) - set(before)), _counted(set(before) - set(after))
    plural = "" if len(after) == 1 else "s"
    log.info("pool %s: %d replica%s found, %s new, %s gone", pool, len(after), plural, added, removed)


def _counted(urls: set[str]) -> str:
    """How many, and the first of them: `2 (http://10.0.0.1:8000, http://10.0.0.2:8000)`."""
    names = sorted(urls)[:MAX_NAMED] + ["..."] * (len(urls) > MAX_NAMED)
    return f"{len(urls)} ({', '.join(names)})" if urls else "0"
