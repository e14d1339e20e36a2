"""The most obvious proxy: a FastAPI endpoint that forwards with httpx.

`python -m loadtests.bench.naive PORT REPLICA...` serves on PORT in front of the replicas on the other ports. It parses
and counts nothing, and takes replicas in turn. So its cost is that of the framework and the HTTP client.
docs/internals/adr/0001-data-plane.md rests on it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask


def app(replicas: list[str]) -> FastAPI:
    """The proxy in front of `replicas` (ports of loopback)."""
    client = httpx.AsyncClient(timeout=600.0, limits=httpx.Limits(max_connections=None), trust_env=False)
    turns = cycle(f"http://127.0.0.1:{port}" for port in replicas)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    built = FastAPI(lifespan=lifespan)

    @built.post("/v1/chat/completions")
    async def forward(request: Request) -> StreamingResponse:
        upstream = client.build_request(
            "POST",
            next(turns) + request.url.path,
            content=await request.body(),
            headers={"content-type": "application/json"},
        )
        answer = await client.send(upstream, stream=True)
        kept = {name: answer.headers[name] for name in ("content-type", "content-length") if name in answer.headers}
        return StreamingResponse(answer.aiter_raw(), answer.status_code, kept, background=BackgroundTask(answer.aclose))

    return built


if __name__ == "__main__":
    uvicorn.run(app(sys.argv[2:]), port=int(sys.argv[1]), log_level="warning", access_log=False)
