"""The first contact, and the choice of a model if the target does not have that of the traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import httpx

from gateway.fleet.fault import Failed, ReadFault
from gateway.fleet.models_json import ModelCard, read_models
from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.probe import TIMEOUT_S, NotFound, probe, refused_fields
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Target

PATH = "/v1/models"
LIST_TIMEOUT_S = 10.0


class WhichModel(Exception):
    """The target has several models, or lacks the named one: the user must name one."""


async def contact(
    target: Target, arrival: Arrival, seed: int, tell: Callable[[str], None], timeout_s: float = TIMEOUT_S
) -> tuple[Target, Sizes | None]:
    """The target and the result of a probe; with its only model if it lacks that of the traffic, and without the
    fields that it refuses.

    Raises NoContact, and WhichModel.
    """
    try:
        sizes = await probe(target, arrival, seed, tell, timeout_s)
    except NotFound:
        found = await with_its_model(target, arrival)
        if found is None:
            raise
        tell(f"{target.url} has no model {arrival.model}: all requests use its only model, {found.model}")
        target = found
        sizes = await probe(target, arrival, seed, tell, timeout_s)
    left_out = await refused_fields(target, arrival, seed, timeout_s)
    if left_out:
        tell(f"{target.url} refuses {', '.join(sorted(left_out))}: all requests go without")
    return replace(target, left_out=left_out), sizes


async def with_its_model(target: Target, arrival: Arrival) -> Target | None:
    """The target with its only listed model, unless the user has named one.

    None if it lists no model, or the requested one: then its refusal has another reason. Raises WhichModel.
    """
    names, asked = await _names(target, arrival.tier, arrival.tenant), target.model or arrival.model
    if not names or asked in names:
        return None
    if target.model is not None or len(names) > 1:
        raise WhichModel(f"{target.url} has no model {asked}: give one of its models with --model: {', '.join(names)}")
    return replace(target, model=names[0])


def asking(target: Target, tier: str, tenant: str) -> httpx.AsyncClient:
    """A client for other requests than those of a test (models, metrics), with the key of that tenant."""
    key = target.key_of(tier, tenant)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=target.url.removesuffix("/v1"), headers=headers, timeout=LIST_TIMEOUT_S)


async def listed(client: httpx.AsyncClient) -> tuple[ModelCard, ...] | Failed:
    """The models that the target lists to that client. Raises httpx.HTTPError."""
    answer = await client.get(PATH)
    if answer.status_code != httpx.codes.OK:
        return Failed(ReadFault.STATUS, f"it answers {answer.status_code}")
    return read_models(answer.content)


async def _names(target: Target, tier: str, tenant: str) -> list[str]:
    """Names of the listed models; empty if the target lists none."""
    try:
        async with asking(target, tier, tenant) as client:
            found = await listed(client)
    except httpx.HTTPError:
        return []
    return [] if isinstance(found, Failed) else [card.id for card in found]
