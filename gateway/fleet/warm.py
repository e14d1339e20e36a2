"""Warms a replica up with one-token completions. No client waits for them, and no metric counts them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from gateway.core.pool_spec import ReplicaAccess
from gateway.fleet.fault import Failed
from gateway.fleet.fetch import Fetcher
from gateway.fleet.models_json import read_models

TIMEOUT_S = 60.0
"""Timeout of each completion: the first one may compile kernels."""
LIMIT_BYTES = 1024 * 1024
PROMPT = "The quick brown fox jumps over the lazy dog. "
PROMPT_TOKENS = 10
"""Tokens of `PROMPT`, about: one for each word, and one for the full stop."""


async def warm_up(
    url: str,
    access: ReplicaAccess,
    times: int,
    ranks: Sequence[int | None] = (None,),
    list_timeout_s: float = TIMEOUT_S,
    prompt_tokens: int = 0,
) -> Failed | None:
    """Read the list of models, then send `times` completions to each rank, one after the other. Stops at the first
    failure and returns it. `prompt_tokens`: about how many tokens a prompt has, rounded up to whole sentences.
    """
    listed = await _ask(Fetcher(f"{url}/v1/models", access=access, timeout_s=list_timeout_s, limit_bytes=LIMIT_BYTES))
    if isinstance(listed, Failed) and not times and 400 <= listed.status < 500:
        return None  # a server without a list of models lives all the same
    cards = listed if isinstance(listed, Failed) else read_models(listed)
    if isinstance(cards, Failed) or not times:
        return cards if isinstance(cards, Failed) else None
    prompt = PROMPT * max(1, -(-prompt_tokens // PROMPT_TOKENS))
    for number in range(times):
        # The number comes first, so that no prompt is found in the prefix cache.
        body = json.dumps({"model": cards[0].id, "prompt": f"{number}. {prompt}", "max_tokens": 1}).encode()
        fetchers = [
            Fetcher(
                f"{url}/v1/completions",
                access=access,
                timeout_s=TIMEOUT_S,
                limit_bytes=LIMIT_BYTES,
                body=body,
                dp_rank=rank,
            )
            for rank in ranks
        ]
        for answer in await asyncio.gather(*map(_ask, fetchers)):
            if isinstance(answer, Failed):
                return answer
    return None


async def _ask(fetcher: Fetcher) -> bytes | Failed:
    try:
        return await fetcher.get()
    finally:
        fetcher.close()
