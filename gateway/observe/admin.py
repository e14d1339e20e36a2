"""The admin port: metrics, state, probes, the console page, and a few actions.

Reading needs no token, so this port belongs on loopback or on a network of its own. Every change is a POST below
/admin/. It needs `Authorization: Bearer <token>`, except through the unix socket (`trusted`). POST /admin/explain only
reads, so it needs no token. This path, the console page, the state and the records of requests require a Host that is
an address, localhost or a configured name. So a web page whose own host name points at this port (DNS rebinding) gets
no data.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict, dataclass

import orjson
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from gateway.observe.console.pages import console_router
from gateway.observe.explain_request import asked
from gateway.observe.metrics.exposition import chosen, registry_in_pieces, render
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.requests.pages import requests_router
from gateway.observe.sources import Sources
from gateway.observe.state import NO_STORE, load_of, page_of, state, state_pieces
from gateway.observe.usage.pages import usage_router
from gateway.policy.sections.hosts import is_known

MAX_BODY_BYTES = 64 * 1024
"""Limit on request bodies, kept by the connection. A question, or the name of a replica, takes a few hundred bytes."""
NO_TOKEN = (
    "this changes something and no admin token is set: start tailgate with TAILGATE_ADMIN_TOKEN in its environment, "
    "or use its admin unix socket"
)


@dataclass(frozen=True, slots=True)
class Done:
    """Outcome of an action. `message`: text for its caller."""

    ok: bool
    message: str


Action = Callable[[], Awaitable[Done]]
ReplicaAction = Callable[[str], Done]


@dataclass(frozen=True, slots=True)
class Access:
    """Access rights at an admin port, and the host names under which browsers may reach the port."""

    token: str | None
    """Bearer token for changes. None: no change is allowed, unless `trusted`."""
    trusted: bool = False
    """Whether changes need no token, as at the unix socket."""
    names: Collection[str] = ()
    """Accepted host names, in addition to addresses and localhost."""


def admin_app(
    metrics: Metrics,
    sources: Sources,
    actions: Mapping[str, Action],
    replica_actions: Mapping[str, ReplicaAction],
    access: Access,
) -> FastAPI:
    """The FastAPI application. Each of `actions`, e.g. "reload", is a POST to /admin/<name>.

    Each of `replica_actions` is a POST to /admin/<name> with the body {"replica": NAME}. The same name may also be one
    of `actions`. A request without a body means that action.

    FastAPI's own documentation pages are off: they load scripts from other hosts, and say less than docs/reference.
    """
    app = FastAPI(title="tailgate admin", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.include_router(_probes(sources))
    app.include_router(_metrics(metrics, sources))
    known = [Depends(_known_host(access.names))]
    app.include_router(console_router(sources.history, sources.wall_s), dependencies=known)
    app.include_router(_state(metrics, sources), dependencies=known)
    app.include_router(requests_router(sources), dependencies=known)
    app.include_router(usage_router(sources.usage, sources.policy), dependencies=known)
    app.include_router(_actions(actions, replica_actions, access))
    return app


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    """The answer to a parameter of the wrong form, in the form of every other error."""
    assert isinstance(error, RequestValidationError)
    wrong = [f"{each['loc'][-1]}: {each['msg'][0].lower()}{each['msg'][1:]}" for each in error.errors()]
    return JSONResponse({"detail": "; ".join(wrong)}, 400)


def _probes(sources: Sources) -> APIRouter:
    router = APIRouter()

    @router.get("/livez", response_class=PlainTextResponse)
    @router.head("/livez", include_in_schema=False)
    @router.get("/health", response_class=PlainTextResponse)
    @router.head("/health", include_in_schema=False)
    async def live() -> str:
        return "ok\n"

    @router.get("/readyz")
    @router.head("/readyz", include_in_schema=False)
    @router.get("/ready")
    @router.head("/ready", include_in_schema=False)
    async def ready() -> PlainTextResponse:
        reason = sources.not_ready()
        return PlainTextResponse(f"{reason or 'ready'}\n", 503 if reason else 200)

    return router


def _metrics(metrics: Metrics, sources: Sources) -> APIRouter:
    router = APIRouter()

    @router.get("/loads")
    async def loads() -> Response:
        pools = (await sources.snapshot_in_pieces()).pools
        return page_of({"pools": [load_of(pool) for pool in pools]})

    @router.get("/metrics")
    async def page(request: Request) -> StreamingResponse:
        form = chosen(request.headers.get("accept", ""))
        body = render(await registry_in_pieces(metrics, sources), form)
        return StreamingResponse(body, headers={"content-type": form.content_type})

    return router


def _known_host(names: Collection[str]) -> Callable[[Request], Awaitable[None]]:
    """A check of the Host header, which keeps out web pages whose own host name points at this port."""
    known = {name.lower() for name in names}

    async def check(request: Request) -> None:
        if not is_known(request.headers.get("host", ""), known, any_address=True):
            raise HTTPException(403, "this Host is unknown to the admin port: use the port's address")

    return check


def _state(metrics: Metrics, sources: Sources) -> APIRouter:
    router = APIRouter()
    started = sources.now()

    @router.get("/admin/state")
    async def show() -> StreamingResponse:
        pieces = state_pieces(await state(metrics, sources, started))
        return StreamingResponse(pieces, media_type="application/json", headers=NO_STORE)

    @router.get("/admin/policy")
    async def policies() -> Response:
        present, *before = reversed(sources.policies())
        return page_of({**asdict(present), "before": before})

    @router.post("/admin/explain")
    async def explain(request: Request) -> Response:
        try:
            described = asked(await request.body(), sources)
        except ValueError as exc:
            raise HTTPException(400, str(exc)) from None
        return page_of(sources.explain(described))

    return router


def _actions(actions: Mapping[str, Action], replica_actions: Mapping[str, ReplicaAction], access: Access) -> APIRouter:
    async def allowed(request: Request) -> None:
        if access.trusted:
            return
        if not access.token:
            raise HTTPException(403, NO_TOKEN)
        if not _is_token(request.headers.get("authorization", ""), access.token):
            raise HTTPException(401, "wrong or missing admin token", {"www-authenticate": "Bearer"})

    router = APIRouter(dependencies=[Depends(allowed)])

    @router.post("/admin/{action}")
    async def act(action: str, request: Request) -> Response:
        body = await request.body()
        of_replica, of_all = replica_actions.get(action), actions.get(action)
        if of_replica is not None and (body or of_all is None):
            done = of_replica(_replica(body))
        elif of_all is not None:
            done = await of_all()
        else:
            there_are = ", ".join(sorted({*actions, *replica_actions}))
            raise HTTPException(404, f"no such action; known: {there_are}")
        return page_of(done, 200 if done.ok else 409)

    return router


def _replica(body: bytes) -> str:
    """The replica that the body names. Any other body is refused, because a drain without a body would drain the
    gateway.
    """
    try:
        said: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    if not isinstance(said, dict) or list(said) != ["replica"] or not isinstance(said["replica"], str):
        raise HTTPException(400, 'name the replica in the body, and nothing else: {"replica": "NAME"}')
    return said["replica"]


def _is_token(authorization: str, token: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
