"""Small policies and requests for tests of the core. Defaults are generous, and no timers act by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson
from hypothesis import settings

from gateway.core.controller import Controller
from gateway.core.policy import AdmissionMode, AdmissionSpec, Model, Policy, Tier
from gateway.core.pool_spec import Health, PoolSpec, ReplicaSpec, Timeouts
from gateway.core.request import NO_PREFIX, Affinity, Endpoint, Prefix, Request
from gateway.core.sessions import Session, StoredResponse
from gateway.core.slo import Slo
from gateway.driving.state_bytes import in_tuples

STEADY = settings(derandomize=True, deadline=None)
"""For properties: the same examples in every run, however slow the machine is."""
NEVER_TOO_LATE = Timeouts(queue_s=1e6, ttft_s=1e6, idle_s=1e6, total_s=1e6)
QUIET = Health(failures=3, open_s=5.0, slow_start_s=0.0, ejection=None)
SHADOW = AdmissionSpec(AdmissionMode.SHADOW)


def tier(name: str, priority: int = 0, **more: Any) -> Tier:
    """A tier without limits, whose requests may wait for ever."""
    return Tier(name, priority, **{"timeouts": NEVER_TOO_LATE, **more})


def pool(name: str, *replicas: str, slots: int | None = 1, **more: Any) -> PoolSpec:
    """A pool of the replicas named, each with one slot; three failures in a row open a breaker for five seconds.

    No ejection, no slow start.
    """
    specs = tuple(ReplicaSpec(replica, f"http://{replica}:8000") for replica in replicas)
    return PoolSpec(name, specs, slots=slots, **{"health": QUIET, **more})


def policy(*parts: PoolSpec | Tier, models: Sequence[Model] = (), generation: int = 0) -> Policy:
    """A policy of these pools and tiers; all pools serve the model `m`, in the given order."""
    pools = {part.name: part for part in parts if isinstance(part, PoolSpec)}
    tiers = {part.name: part for part in parts if isinstance(part, Tier)} or {"std": tier("std")}
    models = models or (Model("m", tuple(pools)),)
    return Policy(
        models={model.name: model for model in models},
        pools=pools,
        tiers=tiers,
        keys={},
        default_tier=next(iter(tiers)),
        generation=generation,
    )


def a_request(
    request_id: int,
    rules: Policy,
    now: float,
    *,
    tier: str | None = None,
    model: str = "m",
    tenant: str = "acme",
    endpoint: Endpoint = Endpoint.CHAT,
    stream: bool = True,
    prompt: int | None = 100,
    prompt_bytes: int = 400,
    max_tokens: int | None = 100,
    choices: int = 1,
    batch: int = 1,
    body_bytes: int = 1000,
    head_at: float | None = None,
    body_at: float | None = None,
    body_hash: int | None = None,
    asked_model: str = "",
    assembled: bool = False,
    prefix: Prefix = NO_PREFIX,
    token_ids: bool = False,
    adapter: str = "",
    session: Session | None = None,
    stored: StoredResponse | None = None,
    truncates: bool = False,
    slo: Slo | None = None,
) -> Request:
    """A streamed chat of 100 prompt tokens exactly and at most 100 of output, received whole at `now`."""
    chosen = rules.model(model)
    assert chosen is not None
    return Request(
        id=request_id,
        policy=rules,
        tier=rules.tiers[tier or rules.default_tier],
        model=chosen,
        tenant=tenant,
        endpoint=endpoint,
        stream=stream,
        prompt_bytes=prompt_bytes,
        prompt_exact=prompt,
        max_tokens=max_tokens,
        choices=choices,
        batch=batch,
        body_bytes=body_bytes,
        head_at=now if head_at is None else head_at,
        body_at=now if body_at is None else body_at,
        body_hash=body_hash,
        asked_model=asked_model,
        assembled=assembled,
        is_token_ids=token_ids,
        truncates=truncates,
        slo=slo,
        affinity=Affinity(prefix, session, stored, adapter),
    )


def memory_of(controller: Controller, now: float) -> dict[str, Any]:
    """Everything that a controller has learned, as its successor reads it."""
    replicas = {name: controller.memory_of(name) for _, name, _, _ in controller.states()}
    read: object = orjson.loads(orjson.dumps({**controller.memory(now), "replicas": replicas}))
    return cast("dict[str, Any]", in_tuples(read))
