"""One streamed request, timed as its client sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

import httpx

CLIENT_TIMEOUT_S = 30.0


class NoAnswer(Exception):
    """The request was not answered. The text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The replica that answered, and the times of the answer. Times in seconds."""

    pool: str
    replica: str
    ttft_s: float
    """From the request sent to the first token."""
    tpot_s: float
    """The mean time per token after the first."""
    e2e_s: float
    """From the request sent to the end of the answer."""
    prompt_tokens: int
    output_tokens: int


async def ask(api: str, question: Mapping[str, object]) -> Answer:
    """Send `question`, the body of a streamed chat completion, to the gateway at `api`. Raises NoAnswer."""
    body = {**question, "stream": True, "stream_options": {"include_usage": True}}
    usage: dict[str, int] = {}
    first_s = None
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=CLIENT_TIMEOUT_S) as client:
            started = monotonic()
            async with client.stream("POST", f"{api}/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    raise NoAnswer(f"the gateway answered {response.status_code}: {(await response.aread()).decode()}")
                async for line in response.aiter_lines():
                    event = json.loads(line[6:]) if line.startswith("data: {") else {}
                    if "error" in event:
                        raise NoAnswer(f"the answer broke off: {event['error']}")
                    usage = event.get("usage") or usage
                    if first_s is None and any(choice["delta"].get("content") for choice in event.get("choices", ())):
                        first_s = monotonic() - started
                e2e_s = monotonic() - started
    except httpx.HTTPError as error:
        raise NoAnswer(f"the gateway at {api} cannot be reached: {error!r}") from None
    if first_s is None or not usage:
        raise NoAnswer("the answer had no token in it")
    output_tokens = usage["completion_tokens"]
    return Answer(
        pool=response.headers["x-tailgate-pool"],
        replica=response.headers["x-tailgate-replica"],
        ttft_s=first_s,
        tpot_s=(e2e_s - first_s) / max(1, output_tokens - 1),
        e2e_s=e2e_s,
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=output_tokens,
    )
