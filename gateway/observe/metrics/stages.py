"""The stages in which a request spends its time: the one place that divides it."""

from __future__ import annotations

from typing import Final

STAGES: Final = ("receive", "queue", "engine-queue", "prefill", "first-token", "rest")
"""In `receive` the body comes, in `queue` the request waits in the gateway. At the replica, before the first token, it
waits in `engine-queue`, and `prefill` reads its prompt; `first-token` is both, where the engine does not tell them
apart. `rest` is the answer after its first token.
"""
RECEIVE, QUEUE, ENGINE_QUEUE, PREFILL, FIRST_TOKEN, REST = range(6)
AT_REPLICA: Final = (ENGINE_QUEUE, PREFILL, FIRST_TOKEN)


def add_stages(
    seconds: list[float], receive_s: float, queue_s: float, ttft_s: float | None, e2e_s: float, engine: float | None
) -> None:
    """Add the time of one request to `seconds`, which has the order of `STAGES`.

    `ttft_s`: None if no token came, so that all time at the replica was before it. `engine`: share (0-1) of the time
    before the first token that goes into the engine's own queue; None if it is unknown. It is the mean of a replica,
    not a figure of this request.
    """
    first_s = e2e_s if ttft_s is None else ttft_s
    seconds[RECEIVE] += receive_s
    seconds[QUEUE] += queue_s
    if engine is None:
        seconds[FIRST_TOKEN] += first_s - queue_s
    else:
        seconds[ENGINE_QUEUE] += engine * (first_s - queue_s)
        seconds[PREFILL] += (1.0 - engine) * (first_s - queue_s)
    seconds[REST] += e2e_s - first_s
