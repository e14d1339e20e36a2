"""Makes a `Request`, which is never sent, from the question of `/admin/explain`."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.core.policy import ANONYMOUS
from gateway.core.request import NO_AFFINITY, Affinity, Endpoint, Request
from gateway.core.serving import arm_of
from gateway.observe.sources import Sources
from gateway.wire.numbers import count
from gateway.wire.session import sticky_key

FIELDS: Mapping[str, tuple[type, ...]] = {
    "tier": (str,),
    "model": (str,),
    "tenant": (str,),
    "prompt_tokens": (int,),
    "max_tokens": (int, type(None)),
    "stream": (bool,),
}
KINDS = {str: "a text", int: "a whole number above 0, of 63 bits at most", bool: "true or false"}


def asked(body: bytes, sources: Sources) -> Request:
    """The request for a question. Raises ValueError with the name of the wrong field."""
    policy, now = sources.policy(), sources.now()
    try:
        said: object = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as exc:
        raise ValueError(f"the body is not JSON: {exc}") from None
    if not isinstance(said, dict):
        raise ValueError("the body is not a JSON object")
    for name, value in said.items():
        if name not in FIELDS:
            raise ValueError(f"{name}: unknown field; known: {', '.join(FIELDS)}")
        if type(value) not in FIELDS[name] or (type(value) is int and not count(value)):
            raise ValueError(f"{name}: {value!r:.50} is not {KINDS[FIELDS[name][0]]}")
    tier = policy.tiers.get(said.get("tier", policy.default_tier))
    if tier is None:
        raise ValueError(f"tier: {said['tier']!r:.50} is unknown; known: {', '.join(policy.tiers)}")
    name = said.get("model", next(iter(policy.models)))
    model, adapter = sources.find(name, tier)
    if model is None:
        known = ", ".join(policy.models)
        raise ValueError(f"model: {name!r:.50} is unknown; known: {known}, and LoRA adapters that replicas list")
    tenant = said.get("tenant", ANONYMOUS)
    if model.split:
        model = arm_of(policy, model, tier, sticky_key(None, tenant, ""))
    prompt_tokens = said.get("prompt_tokens", 500)
    return Request(
        id=0,
        policy=policy,
        tier=tier,
        model=model,
        tenant=tenant,
        endpoint=Endpoint.CHAT,
        stream=said.get("stream", True),
        prompt_bytes=0,
        prompt_exact=prompt_tokens,
        max_tokens=said.get("max_tokens"),
        choices=1,
        body_bytes=0,
        head_at=now,
        body_at=now,
        affinity=Affinity(adapter=adapter) if adapter else NO_AFFINITY,
    )
