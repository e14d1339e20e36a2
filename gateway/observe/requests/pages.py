"""The pages of the admin port about single requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response

from gateway.core.history import EarlyRefusal
from gateway.core.results import Outcome, Reason
from gateway.observe.requests.budget import budgets
from gateway.observe.requests.document import document_of
from gateway.observe.requests.ring import Found, RequestRing
from gateway.observe.requests.story import story
from gateway.observe.requests.under_way import under_way_document
from gateway.observe.sources import Sources
from gateway.observe.state import page_of

MAX_LISTED = 1000
EARLY = "early"
OUTCOMES = (*(outcome.value for outcome in Outcome), EARLY)
"""Outcomes that a list can be narrowed to. `early`: refused before the request was read."""


FILTERS = {"tier", "tenant", "outcome", "reason", "good", "limit"}
"""Parameters of a list."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The requests that a list shows. None and empty: all."""

    tier: str = ""
    tenant: str = ""
    outcome: str = ""
    reason: str = ""
    good: bool | None = None

    def wants(self, one: Found) -> bool:
        """Whether the list shows this request."""
        if isinstance(one, EarlyRefusal):
            outcome, reason, good = EARLY, one.why, False
        else:
            outcome, reason, good = one.outcome.value, "" if one.why is None else one.why.value, one.good
        return (
            self.tier in ("", one.tier)
            and self.tenant in ("", one.tenant)
            and self.outcome in ("", outcome)
            and self.reason in ("", reason)
            and self.good in (None, good)
        )


def requests_router(sources: Sources) -> APIRouter:
    """GET /admin/requests, /admin/requests/{id} and /admin/stages."""
    router = APIRouter()
    ring, wall_s = sources.requests, sources.wall_s

    def kept() -> RequestRing:
        if ring is None:
            raise HTTPException(404, "no records of requests are kept: start tailgate with --records above 0")
        return ring

    @router.get("/admin/requests", dependencies=[Depends(only_known(FILTERS))])
    async def latest(
        tier: str = "",
        tenant: str = "",
        outcome: str = "",
        reason: str = "",
        good: bool | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 50,
    ) -> Response:
        for name, value, known in (("outcome", outcome, OUTCOMES), ("reason", reason, [why.value for why in Reason])):
            if value and value not in known:
                raise HTTPException(400, f"{name}: {value!r:.50} is unknown; known: {', '.join(known)}")
        found = kept().latest(Filter(tier, tenant, outcome, reason, good).wants, limit)
        return page_of({"requests": [document_of(one, wall_s()) for one in found]})

    @router.get("/admin/stages")
    async def stages() -> Response:
        rows = kept().complete()
        since = min((row.ended_at for row in rows), default=None)
        found = await asyncio.to_thread(budgets, rows)
        return page_of({"since": None if since is None else _written(since + wall_s()), "stages": found})

    @router.get("/admin/requests/{request_id}")
    async def one(request_id: str) -> Response:
        told = [under_way_document(state, sources.now(), wall_s()) for state in sources.under_way(request_id)]
        if ring is not None or not told:
            told += [document_of(each, wall_s()) for each in kept().find(request_id)]
        if not told:
            raise HTTPException(404, _unknown(request_id, kept(), wall_s()))
        return page_of({"requests": [{**each, "story": story(each)} for each in told]})

    return router


def only_known(names: Set[str]) -> Callable[[Request], None]:
    """A dependency that refuses parameters other than these: a filter that is ignored would show too much."""

    def check(request: Request) -> None:
        for name in request.query_params.keys() - names:
            raise HTTPException(400, f"{name:.50} is unknown; known: {', '.join(sorted(names))}")

    return check


def _written(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%SZ}"


def _unknown(request_id: str, ring: RequestRing, wall_s: float) -> str:
    oldest = ring.oldest
    since = "none has ended yet"
    if oldest is not None:
        since = f"the oldest of them ended at {_written(wall_s + oldest)}"
    return (
        f"no record of {request_id!r:.140} among {len(ring)} of this process, {since}; the request may be older, or "
        "another gateway's"
    )
