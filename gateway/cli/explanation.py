"""Explains the decision of a policy on one request. The controller makes the decision itself."""

from __future__ import annotations

import random
from dataclasses import dataclass

from gateway.core.commands import Dispatch, Refuse
from gateway.core.controller import Controller
from gateway.core.policy import ANONYMOUS, Limits, Model, Policy, Tier
from gateway.core.pool_spec import PoolSpec, Timeouts
from gateway.core.request import Endpoint, Request
from gateway.core.results import Reason
from gateway.core.serving import arm_of, models_of, open_catch_all
from gateway.core.slo import Slo
from gateway.policy.keys import hash_of
from gateway.wire.apis.table import served
from gateway.wire.body.checks import MISSING
from gateway.wire.parsed import Parsed
from gateway.wire.request import BadRequest, only_of, parse
from gateway.wire.session import sticky_key


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the request would be refused."""

    why: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class ExplainedCaller:
    """The client that sends the request: its tenant and tier."""

    tenant: str
    tier: str
    why: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The request, as the gateway reads it."""

    endpoint: Endpoint
    model: str
    model_why: str
    upstream_model: str
    stream: bool
    prompt_bytes: int
    prompt_tokens_low: int
    prompt_tokens_high: int
    prompt_why: str


@dataclass(frozen=True, slots=True)
class PoolVerdict:
    """One pool of the route: whether it takes the request, and why."""

    name: str
    fits: bool
    chosen: bool
    why: str


@dataclass(frozen=True, slots=True)
class Output:
    """The output cap of each answer, and the changed fields."""

    asked: int | None
    granted: int
    why: str
    choices: int
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole explanation of one request. If it is refused, the fields for later stages are None or empty."""

    refusal: Refusal | None
    caller: ExplainedCaller | None = None
    asked: Asked | None = None
    pools: tuple[PoolVerdict, ...] = ()
    output: Output | None = None
    timeouts: Timeouts | None = None
    limits: Limits | None = None
    reserved_tokens: int | None = None
    """Tokens that are charged to the tenant's limit on arrival. Unused tokens are given back at the end."""
    slo: Slo | None = None


def explain(
    policy: Policy, endpoint: Endpoint, key: str | None, body: bytes, *, key_is_ambient: bool = False
) -> Explanation:
    """The decision of an idle gateway on this request. All its replicas are up, and it has learned nothing yet.
    `key_is_ambient`: whether the key is from TAILGATE_KEY. The explanation says so.
    """
    found = _caller(policy, key, key_is_ambient)
    if isinstance(found, Refusal):
        return Explanation(found)
    caller, tier = found, policy.tiers[found.tier]
    if endpoint not in served(tier):
        return Explanation(
            Refusal(Reason.NOT_FOUND, f"{endpoint.value} is not served in this tier: see its apis"), caller
        )
    try:
        parsed = parse(endpoint, body, tier.caps)
        if not parsed.model:
            parsed.model = _only_model(policy, tier)
    except BadRequest as error:
        return Explanation(Refusal(error.why, error.message), caller)
    model = policy.model(parsed.model)
    if model is None or parsed.model == "*":
        return Explanation(
            Refusal(
                Reason.MODEL_NOT_FOUND, f"the policy has no model {parsed.model}; it has {', '.join(policy.models)}"
            ),
            caller,
        )
    if model.split:
        # The session is ignored here: a tenant keeps its arm, and without keys each request gets any arm.
        model = arm_of(policy, model, tier, sticky_key(None, caller.tenant, ""))
    return _decided(policy, caller, tier, model, parsed, len(body))


def _only_model(policy: Policy, tier: Tier) -> str:
    """The model of a request that names none. Raises BadRequest unless there is exactly one that `tier` may use."""
    catch_all = open_catch_all(policy)
    if catch_all is not None and policy.route(catch_all, tier):
        text = "field required: with a catch-all it depends on the replicas' lists, which only a gateway knows"
        raise BadRequest("model", text, MISSING)
    return only_of(models_of(policy, tier))


def _caller(policy: Policy, key: str | None, is_ambient: bool) -> ExplainedCaller | Refusal:
    if not policy.keys:
        return ExplainedCaller(
            ANONYMOUS, policy.default_tier, "the policy has no keys, so everybody gets the default tier"
        )
    if not key:
        return Refusal(Reason.UNAUTHORIZED, "the policy has keys and none was given: use --key or TAILGATE_KEY")
    known = policy.keys.get(hash_of(key))
    if known is None:
        return Refusal(
            Reason.UNAUTHORIZED, f"the policy does not know {'the key in TAILGATE_KEY' if is_ambient else 'this key'}"
        )
    return ExplainedCaller(known.tenant, known.tier, "by the key in TAILGATE_KEY" if is_ambient else "by its key")


def _decided(
    policy: Policy, caller: ExplainedCaller, tier: Tier, model: Model, parsed: Parsed, body_bytes: int
) -> Explanation:
    controller, exact = Controller(policy, random.Random(0)), parsed.prompt_exact
    request = Request(
        id=1,
        policy=policy,
        tier=tier,
        model=model,
        tenant=caller.tenant,
        endpoint=parsed.endpoint,
        stream=parsed.stream,
        assembled=parsed.assembled,
        prompt_bytes=parsed.prompt_bytes,
        prompt_exact=exact,
        max_tokens=parsed.max_tokens,
        choices=parsed.choices,
        batch=parsed.batch,
        body_bytes=body_bytes,
        head_at=0.0,
        body_at=0.0,
    )
    # A pool must fit each prompt of a batch by itself. The token limit counts all prompts together.
    batch = parsed.batch
    bytes_each = parsed.prompt_bytes // batch
    low, high = controller.prompts.estimate(model.name, bytes_each)
    low = max(low, min(bytes_each, 1))  # the gateway's estimate of a few bytes is 0, which no prompt with text has
    if exact is not None:
        low, high = exact // batch, -(-exact // batch)
    total = high * batch if exact is None else exact
    asked = Asked(
        endpoint=parsed.endpoint,
        model=model.name,
        model_why=_model_why(model, parsed.model),
        upstream_model=model.upstream or parsed.model,
        stream=parsed.stream,
        prompt_bytes=parsed.prompt_bytes,
        prompt_tokens_low=max(low * batch, min(parsed.prompt_bytes, 1)) if exact is None else exact,
        prompt_tokens_high=total,
        prompt_why=_prompt_why(parsed),
    )
    refusal: Refusal | None = None
    chosen: PoolSpec | None = None
    granted = 0
    for command in controller.arrive(request, 0.0):
        if isinstance(command, Refuse):
            refusal = Refusal(command.why, command.detail)
        elif isinstance(command, Dispatch):
            granted = command.max_tokens
            chosen = next(p for p in policy.pools.values() if command.replica in (r.name for r in p.replicas))
    pools = tuple(_verdict(pool, chosen, tier, low, high, batch) for pool in _considered(policy, model))
    if chosen is None:
        return Explanation(refusal, caller, asked, pools, limits=tier.limits)
    reserved = 0 if parsed.cap_field is None else tier.caps.granted(parsed.max_tokens)
    return Explanation(
        refusal=None,
        caller=caller,
        asked=asked,
        pools=pools,
        output=Output(parsed.max_tokens, granted, _granted_why(parsed, tier), parsed.choices, parsed.changed),
        timeouts=tier.timeouts.narrowed(chosen.timeouts),
        limits=tier.limits,
        reserved_tokens=total + reserved * parsed.choices,
        slo=tier.slo,
    )


def _model_why(model: Model, name: str) -> str:
    if model.any_name:
        return f"{name} is not listed, * takes every name"
    if name == model.name:
        return "by its own name"
    return f"{name} is an alias of it" if name in model.aliases else f"an arm of {name}, without a session"


def _prompt_why(parsed: Parsed) -> str:
    if parsed.prompt_exact is not None:
        return "counted: the prompt is given as token ids"
    return "estimated from its bytes, nothing learned yet; the gateway learns the ratio from the replicas' usage"


def _considered(policy: Policy, model: Model) -> tuple[PoolSpec, ...]:
    return tuple(policy.pools[name] for name in model.pools)


def _verdict(pool: PoolSpec, chosen: PoolSpec | None, tier: Tier, low: int, high: int, batch: int) -> PoolVerdict:
    """Whether a pool takes a prompt of `low` to `high` tokens, or each of `batch` such prompts, and why."""
    limit = pool.max_prompt_tokens
    if tier.pools is not None and pool.name not in tier.pools:
        return PoolVerdict(pool.name, False, False, f"the tier {tier.name} is bound to other pools")
    if limit is None:
        fits, why = True, "takes prompts of any length"
    elif high <= limit:
        fits, why = True, f"up to {high} tokens, within its {limit}"
    elif low > limit:
        fits, why = False, f"at least {low} tokens, more than its {limit}"
    else:
        fits, why = pool is chosen, f"between {low} and {high} tokens, which may be more than its {limit}"
        if fits:
            why += "; no later pool is left to try"
    if batch > 1 and limit is not None:
        why = f"each of {batch} prompts has {why}"
    if fits and chosen is not None and pool is not chosen:
        why += "; an earlier pool is used"
    return PoolVerdict(pool.name, fits, pool is chosen, why)


def _granted_why(parsed: Parsed, tier: Tier) -> str:
    caps = tier.caps
    if parsed.cap_field is None:
        return "this API has no output cap"
    if parsed.max_tokens is None and not caps.max_tokens_default:
        return "not requested, and the tier leaves it to the engine"
    if parsed.max_tokens is None:
        return f"not requested, so the tier's default; {caps.max_tokens_limit} at most"
    if parsed.max_tokens > caps.max_tokens_limit:
        return "clamped to the tier's limit; the answer says so in x-tailgate-max-tokens"
    return f"as requested; the tier's limit is {caps.max_tokens_limit}"
