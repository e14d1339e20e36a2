"""Facts that an engine reports of itself, before any request."""

from __future__ import annotations

import re
from dataclasses import replace

import httpx

from loadtests.replay.models import asking, listed
from loadtests.replay.probe import NoContact, reach
from loadtests.replay.target import Target

CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)


async def about(target: Target) -> tuple[Target, int | None, int | None]:
    """The model, context length and KV-cache tokens that the target reports; None: not reported.

    Raises NoContact.
    """
    await reach(target)
    try:
        async with asking(target, "default", "calibrate") as client:
            found, page = await listed(client), (await client.get("/metrics")).text
    except httpx.HTTPError as error:
        raise NoContact(f"{target.url} cannot be reached: {error}") from None
    if target.model is None and not isinstance(found, tuple):
        raise NoContact(f"{target.url} lists no models ({found.detail}): name one with --model")
    cards = found if isinstance(found, tuple) else ()
    wanted = target.model or cards[0].id
    context = next((card.max_model_len for card in cards if card.id == wanted), None)
    labels = CACHE.search(page)
    sizes = dict(re.findall(r'(\w+)="(\d+)"', labels.group(1))) if labels else {}
    blocks, block = sizes.get("num_gpu_blocks"), sizes.get("block_size")
    kept = int(blocks) * int(block) if blocks and block else None
    return replace(target, model=wanted), context, kept
