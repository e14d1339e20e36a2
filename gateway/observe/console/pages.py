"""The pages of the admin port that the console is made of."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from gateway.observe.console.history import REPLICA_STEP_S, LastHour
from gateway.observe.console.page import Page
from gateway.observe.state import NO_STORE, document, page_of

REPLICAS_AT_A_TIME = 50
"""Replicas whose figures are encoded in one turn of the event loop: some milliseconds."""


def console_router(history: LastHour, wall_s: Callable[[], float]) -> APIRouter:
    """GET /, /admin/history and /admin/history/replicas. `wall_s`: Unix time at the zero of the monotonic clock."""
    router = APIRouter()
    console = Page.load()

    @router.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        return HTMLResponse(console.html, headers=console.headers)

    @router.get("/admin/history")
    async def points(since: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0.0) -> Response:
        # A point of the time `since` was sent before. Its time is rounded to a tenth.
        return page_of(history.since(since - wall_s() + 0.1, wall_s()))

    @router.get("/admin/history/replicas")
    async def replicas(pool: str) -> StreamingResponse:
        if pool not in {name for name, _ in history.replicas}:
            raise HTTPException(404, f"there is no pool {pool!r:.80}, or its figures are still to come")
        return StreamingResponse(_replicas(history, pool, wall_s()), media_type="application/json", headers=NO_STORE)

    return router


async def _replicas(history: LastHour, pool: str, wall_s: float) -> AsyncIterator[bytes]:
    at = history.replicas_at
    yield b'{"step_s":%s,"at_unix_s":%s,"replicas":{' % (
        document(REPLICA_STEP_S),
        document(None if at == -math.inf else wall_s + at),
    )
    rows: list[bytes] = []
    comma = b""
    for name, columns in history.of_replicas(pool):
        rows.append(b"%s:%s" % (document(name), document(columns)))
        if len(rows) == REPLICAS_AT_A_TIME:
            yield comma + b",".join(rows)
            rows, comma = [], b","
            await asyncio.sleep(0)  # other work runs in between
    yield (comma if rows else b"") + b",".join(rows) + b"}}"
