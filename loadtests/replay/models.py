"""The first contact, and which model a target is asked for that does not know the one of the traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import httpx

from gateway.fleet.fault import Failed, ReadFault
from gateway.fleet.models_json import ModelCard, read_models
from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.probe import TIMEOUT_S, NotFound, probe
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Target

PATH = "/v1/models"
LIST_TIMEOUT_S = 10.0


class WhichModel(Exception):
    """The target has several, or not the one that was named: somebody has to say which is meant."""


async def contact(
    target: Target, arrival: Arrival, seed: int, tell: Callable[[str], None], timeout_s: float = TIMEOUT_S
) -> tuple[Target, Sizes | None]:
    """The target and what a probe of it says; with its only model if it has not that of the traffic.

    Raises NoContact, and WhichModel.
    """
    try:
        return target, await probe(target, arrival, seed, tell, timeout_s)
    except NotFound:
        found = await with_its_model(target, arrival)
        if found is None:
            raise
    tell(f"{target.url} has no model {arrival.model}: all ask for the one it has, {found.model}")
    return found, await probe(found, arrival, seed, tell, timeout_s)


async def with_its_model(target: Target, arrival: Arrival) -> Target | None:
    """The target asked for the only model that it lists to who asks as `arrival` does, unless somebody has named one.

    None where it lists none, or the one that it was asked for: then its refusal has another reason. Raises WhichModel.
    """
    names, asked = await _names(target, arrival.tier, arrival.tenant), target.model or arrival.model
    if not names or asked in names:
        return None
    if target.model is not None or len(names) > 1:
        raise WhichModel(f"{target.url} has no model {asked}: give with --model one that it lists: {', '.join(names)}")
    return replace(target, model=names[0])


def asking(target: Target, tier: str, tenant: str) -> httpx.AsyncClient:
    """A client for what is no request of a test (the list of models, metrics), with the key of that tenant."""
    key = target.key_of(tier, tenant)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=target.url.removesuffix("/v1"), headers=headers, timeout=LIST_TIMEOUT_S)


async def listed(client: httpx.AsyncClient) -> tuple[ModelCard, ...] | Failed:
    """The models that it lists to that client. Raises httpx.HTTPError."""
    answer = await client.get(PATH)
    if answer.status_code != httpx.codes.OK:
        return Failed(ReadFault.STATUS, f"it answers {answer.status_code}")
    return read_models(answer.content)


async def _names(target: Target, tier: str, tenant: str) -> list[str]:
    """Empty where it does not say."""
    try:
        async with asking(target, tier, tenant) as client:
            found = await listed(client)
    except httpx.HTTPError:
        return []
    return [] if isinstance(found, Failed) else [card.id for card in found]
