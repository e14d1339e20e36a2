"""The page of the admin port about usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fastapi import APIRouter, Depends, HTTPException, Response

from gateway.core.policy import Policy
from gateway.observe.requests.pages import only_known
from gateway.observe.state import page_of
from gateway.observe.usage.database import UsageError
from gateway.observe.usage.ledger import UsageLedger
from gateway.observe.usage.report import question, report

PATIENCE_S = 2.0
"""Seconds that a reader waits for the latest sums. The file may be locked."""


def usage_router(ledger: UsageLedger | None, policy: Callable[[], Policy]) -> APIRouter:
    """GET /admin/usage. `ledger`: None if no usage is kept."""
    router = APIRouter()

    @router.get("/admin/usage", dependencies=[Depends(only_known({"by", "since", "until"}))])
    async def usage(by: str = "tenant", since: str = "7d", until: str = "") -> Response:
        if ledger is None:
            raise HTTPException(404, "no usage is kept: start tailgate with --usage FILE")
        try:
            asked = question(by, since, until, time.time())
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        missing = await ledger.latest(PATIENCE_S)
        try:
            found = await asyncio.to_thread(report, [ledger.path], asked, policy())
        except UsageError as error:
            raise HTTPException(503, str(error)) from None
        return page_of({**found, "error": missing or None})

    return router
