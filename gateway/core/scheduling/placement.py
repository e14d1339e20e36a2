"""Finds the pool that serves a request, or the reason why none can."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gateway.core.estimators.prompt_length import PromptEstimator
from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.offer import Offer, granted
from gateway.core.pool_spec import PoolSpec
from gateway.core.request import GENERATING, Request
from gateway.core.results import Outcome, Reason
from gateway.core.serving import MAX_NAME, no_model


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Why no pool takes the request: none ever would, or all suitable pools are down for about `retry_after_s`."""

    outcome: Outcome
    why: Reason
    detail: str = ""
    retry_after_s: float | None = None
    prompt_tokens: int = 0
    """Estimated tokens of all prompts together."""


class Placement:
    """Finds pools by the prompt lengths learned so far."""

    def __init__(self, fleet: Fleet, prompts: PromptEstimator) -> None:
        self._fleet = fleet
        self._prompts = prompts

    def find(self, request: Request, now: float, at: Pool | None = None) -> Offer | Unplaceable:
        """The offer of a request to the pool that will serve it. `at`: the pool that serves it already."""
        batch, stored = request.batch, request.affinity.stored
        # An engine reads the prompts of a batch one by one, so the mean prompt length must fit, not the sum.
        if request.prompt_exact is not None:
            low, high = request.prompt_exact // batch, -(-request.prompt_exact // batch)
            tokens = request.prompt_exact
        else:
            low, high = self._prompts.estimate(request.asked_model or request.model.name, request.prompt_bytes // batch)
            tokens = high * batch
        if stored is not None:
            low, high = low + stored.tokens, high + stored.tokens
            tokens = high
        found = at or place(request, low, high, self._fleet, now)
        if at is None and (isinstance(found, Pool) or found.outcome is not Outcome.INVALID):
            found = self._beyond_context(request, low, high) or found
        if not isinstance(found, Pool):
            return replace(found, prompt_tokens=tokens)
        needs = high if request.max_tokens is None else high + request.tier.caps.granted(request.max_tokens)
        return Offer(request, found, tokens, (low + high) // 2, needs, granted(request))

    def _beyond_context(self, request: Request, low: int, high: int) -> Unplaceable | None:
        """The refusal of a prompt that no replica on the route has the context for. An estimated prompt is refused only
        if it is certainly too long; else the engine decides.
        """
        longest = 0
        for spec in request.policy.route(request.model, request.tier):
            pool = self._fleet.pool(spec.name)
            held = None if pool is None else pool.contexts.longest_tokens
            if held is None or high <= held:
                return None
            longest = max(longest, held)
        engine_decides = request.truncates or request.affinity.stored is not None
        if not longest or engine_decides or request.endpoint not in GENERATING:
            return None
        if request.prompt_exact is None:
            model = request.asked_model or request.model.name
            low = self._prompts.at_least(model, request.prompt_bytes // request.batch)
        if low <= longest:
            return None
        has = "" if low == high else "at least "
        detail = f"the maximum context length of this model is {longest} tokens, and the prompt has {has}{low} tokens"
        return Unplaceable(Outcome.INVALID, Reason.CONTEXT_LENGTH, detail)


def place(request: Request, low: int, high: int, fleet: Fleet, now: float) -> Pool | Unplaceable:
    """The first pool of the route that takes a prompt of `high` tokens and has a usable replica.

    `high` overestimates most prompts. So a prompt whose `high` fits no pool still goes to the pool that takes the
    longest prompts: the engine there counts exactly. The prompt is refused only if its `low` does not fit either.
    """
    route, stored = request.policy.route(request.model, request.tier), request.affinity.stored
    if not route:
        detail = f"tier {request.tier.name} may not use model {request.model.name}"
        return Unplaceable(Outcome.INVALID, Reason.FORBIDDEN_MODEL, detail)
    route, listed = _listing(request, route, fleet)
    if not route:
        return Unplaceable(
            Outcome.INVALID, Reason.MODEL_NOT_FOUND, no_model(request.asked_model or request.model.name, listed)
        )
    if stored is not None:
        route = tuple(spec for spec in route if _has(fleet, spec.name, stored.replica))
        if not route:
            detail = f"replica {stored.replica}, which has the previous response, does not serve this request"
            return Unplaceable(Outcome.INVALID, Reason.RESPONSE_NOT_FOUND, detail)
    fitting = [spec for spec in route if spec.takes(high)]
    if not fitting:
        longest = max(route, key=lambda p: p.max_prompt_tokens or math.inf)
        limit = longest.max_prompt_tokens
        if limit is not None and low > limit:
            has = "has" if low == high else "has at least"
            has = has if stored is None else "has, with the responses before it, about"
            detail = f"the prompt {has} {low} tokens; the longest prompt this model serves is {limit} tokens"
            return Unplaceable(Outcome.INVALID, Reason.CONTEXT_LENGTH, detail)
        fitting = [spec for spec in route if spec.max_prompt_tokens == limit]
    for spec in fitting:
        pool = fleet.pool(spec.name)
        if pool is not None and pool.is_pinned(request):
            home = pool.home(request)
            if home is not None and not home.keeps_state:
                wait_s = fleet.cools_in_s(spec.name, now)
                return Unplaceable(Outcome.REFUSED, Reason.NO_REPLICAS, kept_at(request, home), wait_s)
        if pool is not None and pool.serves(request):
            return pool
    cools_in_s = min(fleet.cools_in_s(spec.name, now) for spec in fitting)
    return Unplaceable(Outcome.REFUSED, Reason.NO_REPLICAS, retry_after_s=cools_in_s)


def _listing(request: Request, route: tuple[PoolSpec, ...], fleet: Fleet) -> tuple[tuple[PoolSpec, ...], list[str]]:
    """Pools of the route with a replica that takes the request's model, and the names that the others list."""
    for spec in route:
        pool = fleet.pool(spec.name)
        if pool is not None and not pool.may_serve(request):
            break
    else:
        return route, []
    taking: list[PoolSpec] = []
    names: dict[str, None] = {}
    for spec in route:
        pool = fleet.pool(spec.name)
        if pool is None or pool.may_serve(request):
            taking.append(spec)
        else:
            names.update(dict.fromkeys(pool.names))
    return tuple(taking), [*names]


def _has(fleet: Fleet, pool_name: str, replica: str) -> bool:
    pool = fleet.pool(pool_name)
    return pool is not None and replica in pool.replicas


def kept_at(request: Request, home: Replica) -> str:
    """Text on why a pinned request has no other replica than `home`, and on what its client may do."""
    at = f"at replica {home.spec.name}, which is {home.state}. Try again later, or"
    if request.affinity.stored is not None:
        return f"the previous response is kept {at} send the conversation whole."
    session = request.affinity.session
    name = "" if session is None else session.name[:MAX_NAME]
    return f"session {name} is kept {at} begin another session and send the conversation whole."
