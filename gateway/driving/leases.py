"""This gateway's parts of the limits of tenants: what it asks of the store, and what it makes of the answers.

A limit is in use from the first request of its tenant until it is full again and nobody asks. All gateways then take
part in it, whether or not they have requests of the tenant. A row of a limit goes to the store once in `RENEW_S`, and
in each round while its lease is nearly used. Leases lapse `LEASE_S` after they were asked for, however much they are
used.
"""

from __future__ import annotations

import hashlib
import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

from gateway.core.estimators.rates import Rate
from gateway.core.policy import QUOTAS, LimitKind
from gateway.core.sample import LimitLease, LimitUse
from gateway.driving.lease_script import SCRIPT
from gateway.observe.metrics.tenant_demand import Tenancy, TenantDemand

log = logging.getLogger("tailgate")

LEASE_S: Final = 3.0
RENEW_S: Final = 0.5
ROUND_S: Final = 0.1
"""Seconds between two rounds that carry limits."""
QUOTA_LEASE_S: Final = 30.0
QUOTA_RENEW_S: Final = 10.0
"""Quotas last for long, so that unused ones are renewed seldom."""
QUOTA_KEEP_S: Final = 32 * 86400
JOIN_S: Final = 0.5
"""A gateway that is alive has joined a new limit after this long."""
DEMAND_TAU_S: Final = 2.0
"""Demand is forgotten with this time constant."""
NEED_S: Final = 2.0
"""Room for one request is kept for so long after the latest: refused clients come back."""
KEEP_S: Final = 120
"""A limit without a row for this long is forgotten: it is full."""
MAX_ROWS: Final = 200
"""Limits in one call of the script, which takes some 40 us for each, and about as many in one round."""
PREFIX: Final = "{tailgate}:limit:"
IN_USE: Final = "{tailgate}:limits"
SHA: Final = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
_VERSION: Final = "1"

_Place = tuple[str, str, LimitKind]
"""(tenant, tier, limit)"""
Arguments = tuple[str | float, ...]


class _Tenant:
    """A tenant in one tier whose limits are in use."""

    __slots__ = ("asked_at", "demand", "every_s", "has_changed", "renew_at", "used")

    def __init__(self, now: float) -> None:
        self.demand = Rate(DEMAND_TAU_S)
        self.demand.latest_at = now
        self.asked_at = -math.inf
        self.has_changed = False
        self.renew_at = now
        self.every_s = RENEW_S
        self.used: dict[str, tuple[float, float, float]] = {}
        """By key of a limit: own use at the last answer, what was left in the fleet then, and when it was asked."""


class LeaseCall:
    """One call of the script: its keys and arguments, and the limits that they are about."""

    __slots__ = ("arguments", "at", "keys", "places")

    def __init__(
        self, keys: list[str], arguments: list[str | float], places: list[tuple[_Place, LimitUse]], at: float
    ) -> None:
        self.keys, self.arguments, self.places, self.at = keys, arguments, places, at

    def command(self, whole: bool) -> Arguments:
        """The command for the store: by the hash of the script, or `whole`, where the store does not know it."""
        first = ("EVAL", SCRIPT) if whole else ("EVALSHA", SHA)
        return (*first, len(self.keys), *self.keys, *self.arguments)


class Leases:
    """Asks for leases, and takes the answers."""

    def __init__(
        self,
        name: str,
        demand: TenantDemand,
        uses: Callable[[str, str, float], Sequence[LimitUse]],
        share: Callable[[int, tuple[LimitLease, ...]], None],
        clock: Callable[[], float],
    ) -> None:
        """`name`: of this gateway. `uses`: returns the use of a tenant's limits in a tier. `share`: takes the number of
        gateways, and new leases. `clock`: that of the controller.
        """
        self._clock = clock
        self._name = name
        self._demand = demand
        self._uses = uses
        self._share = share
        self._tenants: dict[Tenancy, _Tenant] = {}
        self._active: dict[Tenancy, _Tenant] = {}
        """Those with a limit in use."""
        self._since = "-inf"
        """Time of the server up to which limits in use are known."""
        self._gateways, self._told = 1, 0
        """How many gateways share the limits, and how many the controller knows of."""
        self._whole: set[Tenancy] = set()
        """Tenants of whom the present round has all limits."""
        self._held: dict[_Place, LimitLease] = {}
        """The last leases of limits that refill."""
        self._errors: dict[Tenancy, str] = {}
        """By tenant and tier: why a limit could not be leased at the last try."""

    @property
    def error(self) -> str:
        """Why a limit cannot be leased; empty if all can be."""
        return next(iter(self._errors.values()), "")

    def calls(self, gateways: int, most: int = MAX_ROWS) -> Iterator[LeaseCall]:
        """The calls of one round, with `most` rows or a few more: the rest have their turn in the next. `gateways`: how
        many share the limits, this one included.
        """
        self._gateways, now = gateways, self._clock()
        for key, count in self._demand.take().items():
            tenant = self._tenant(key, now)
            tenant.demand.add(now, count)
            tenant.has_changed = True
            if count:
                tenant.asked_at, tenant.every_s = now, RENEW_S
        self._whole.clear()
        rows: list[tuple[_Place, LimitUse]] = []
        for key, tenant in list(self._active.items()):
            is_due = tenant.renew_at <= now
            if most <= 0 or not (is_due or tenant.has_changed):
                continue
            tenant.has_changed = False
            uses = self._uses(*key, now)
            del self._active[key]
            if not uses:  # its tier sets no limit here
                self._errors.pop(key, None)
                continue
            self._active[key] = tenant  # the last to have a turn again
            if is_due:
                tenant.renew_at, tenant.every_s = now + tenant.every_s, QUOTA_RENEW_S
                self._whole.add(key)
            more = [
                ((*key, use.limit), use) for use in uses if is_due or _is_tight(tenant, (*key, use.limit), use, now)
            ]
            most -= len(more)
            if len(rows) + len(more) > MAX_ROWS:
                yield self._call(rows, now)
                rows = []
            rows += more
        yield self._call(rows, now)  # even without any, to learn which limits others use

    def give_up(self) -> None:
        """The store is away: leases lapse. If only this gateway cannot reach it, it uses more than it leased, and says
        so as soon as it can.
        """
        if self._held:
            self._share(self._gateways, tuple([self._lapsed(place) for place in list(self._held)]))

    def _lapsed(self, place: _Place) -> LimitLease:
        """A lease that ended when it was asked for: from then on the equal share of this gateway refills."""
        lease = self._held.pop(place)
        return replace(lease, until=lease.until - LEASE_S)

    def leave(self) -> Iterator[LeaseCall]:
        """The calls by which this gateway gives all back."""
        for tenant in self._active.values():
            tenant.renew_at = -math.inf
        for call in self.calls(self._gateways, sys.maxsize):
            call.arguments[3] = 1
            yield call

    def _tenant(self, key: Tenancy, now: float) -> _Tenant:
        tenant = self._tenants.get(key)
        if tenant is None:
            tenant = self._tenants[key] = _Tenant(now)
        self._active[key] = tenant
        return tenant

    def _call(self, rows: list[tuple[_Place, LimitUse]], now: float) -> LeaseCall:
        keys = [IN_USE]
        times = JOIN_S * 1e3, LEASE_S * 1e3
        shared: list[str | float] = [_VERSION, self._name, self._gateways, 0, *times, self._since]
        for place, use in rows:
            keys.append(key_of(place, use.window))
            shared += self._row(place, use, now)
        return LeaseCall(keys, shared, rows, now)

    def _row(self, place: _Place, use: LimitUse, now: float) -> list[float]:
        tenant = self._tenants[place[0], place[1]]
        is_gauge, is_quota = place[2] is LimitKind.CONCURRENCY, place[2] in QUOTAS
        part = use.burst / self._gateways
        unknown = 0.0, use.burst - part + use.left + use.used if is_quota else use.burst, now
        used, left, at = tenant.used.get(key_of(place, use.window), unknown)
        per_s = use.per_min / 60.0
        if is_gauge:
            used = 0.0
        elif not is_quota:
            used = max(used, use.used - part)  # after an outage: no bucket is emptier than empty
            left = min(use.burst, left + (now - at) * per_s)
        demand, need = tenant.demand.per_s(now), use.need if now - tenant.asked_at <= NEED_S else 0.0
        lease_s, keep_s = (QUOTA_LEASE_S, QUOTA_KEEP_S) if is_quota else (LEASE_S, KEEP_S)
        state = use.burst, per_s / 1e3, float(is_gauge), use.used, used, use.left
        return [*state, demand, need, left, lease_s * 1e3, keep_s * 1e3]

    def take(self, call: LeaseCall, answer: list[object]) -> None:
        """Take the answer to a call."""
        self._since = _text(answer[0])
        leases: list[LimitLease] = []
        idle: set[Tenancy] = set()
        in_use: set[Tenancy] = set()
        errors: dict[Tenancy, str] = {}
        for (place, use), row in zip(call.places, cast("list[list[object]]", answer[2:]), strict=True):
            key = place[0], place[1]
            tenant = self._tenants[key]
            said = _text(row[0])
            if said == "idle":
                tenant.used[key_of(place, use.window)] = use.used, use.burst, call.at
                self._held.pop(place, None)
                idle.add(key)
                continue
            in_use.add(key)
            if place[2] not in QUOTAS:
                tenant.every_s = RENEW_S
            if said:
                errors[key] = f"limit {key_of(place, use.window)}: {said}"
                if place in self._held:
                    leases.append(self._lapsed(place))
            else:
                grant, level, share = (float(_text(value)) for value in row[1:])
                tenant.used[key_of(place, use.window)] = use.used, level, call.at
                until = call.at + (QUOTA_LEASE_S if place[2] in QUOTAS else LEASE_S)
                elsewhere = max(0.0, level - grant)
                leases.append(LimitLease(*place, use.used + grant, elsewhere, share, until, use.window))
                if use.per_min:
                    self._held[place] = leases[-1]
        for key in (idle - in_use) & self._whole:
            self._active.pop(key, None)
        self._join(cast("list[object]", answer[1]), call.at)
        self._note(in_use | idle, errors)
        if leases or self._told != self._gateways:
            self._told = self._gateways
            self._share(self._gateways, tuple(leases))

    def _join(self, keys: list[object], now: float) -> None:
        """Take part in limits that others use."""
        for key in keys:
            tenancy = tenancy_of(_text(key))
            if tenancy is not None and tenancy not in self._active:
                self._tenant(tenancy, now).renew_at = now

    def _note(self, asked: set[Tenancy], errors: dict[Tenancy, str]) -> None:
        """Say once that limits cannot be leased. `asked`: tenants of the call. It counts if it has all their limits."""
        was_failing = bool(self._errors)
        for key in asked & self._whole:
            self._errors.pop(key, None)
            if key in errors:
                self._errors[key] = errors[key]
        if self._errors and not was_failing:
            said = "store: %.200s; its tenant has an equal share of it at each gateway until this is mended"
            log.error(said, self.error)
        elif was_failing and not self._errors:
            log.info("store: all limits are leased again")


def _is_tight(tenant: _Tenant, place: _Place, use: LimitUse, now: float) -> bool:
    """Whether a lease may not last until it is renewed, at the pace since it was asked for."""
    known = tenant.used.get(key_of(place, use.window))
    if known is None:
        return True
    pace = (use.used - known[0]) / max(ROUND_S, now - known[2])
    return use.left < max(use.need, pace * RENEW_S)


def key_of(place: _Place, window: str = "") -> str:
    """The key of a limit in the store. `window`: of a quota."""
    tenant, tier, limit = place
    return f"{PREFIX}{limit.value}@{window}:{tier}:{tenant}"


def tenancy_of(key: str) -> Tenancy | None:
    """The tenant and tier of such a key; None for another."""
    _, _, rest = key.removeprefix(PREFIX).partition(":")
    tier, _, tenant = rest.partition(":")
    return (tenant, tier) if tier else None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
