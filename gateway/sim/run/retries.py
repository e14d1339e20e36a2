"""Clients that retry like the OpenAI SDK: after half a second, doubled up to eight seconds, or after `Retry-After`.

They react to the gateway's statuses, `x-should-retry` and `Retry-After`. A client that lost patience retries, too. Like
the SDKs, a client that has seen the beginning of a stream does not retry.
"""

from __future__ import annotations

from random import Random
from typing import Final

from gateway.core.results import Outcome, Record
from gateway.wire.errors.reasons import ROWS
from gateway.wire.errors.replies import RETRY_AFTER_S

FIRST_S: Final = 0.5
MAX_S: Final = 8.0
JITTER: Final = 0.25
"""A pause without a `Retry-After` is shortened at random, by up to this share (0-1)."""
MAX_OBEYED_S: Final = 120.0
"""A client that is told to wait longer than this does not retry."""
TOLD: Final = (429, 503, 504)
"""Statuses that always have a Retry-After."""
FAILED: Final = (Outcome.REFUSED, Outcome.TIMEOUT, Outcome.ERROR, Outcome.QUOTA)


def rests_s(record: Record, retry_after_s: float | None, tries: int, random: Random) -> float | None:
    """Seconds until a client retries, after this many tries (>= 1) without a token; None if the client does not retry.

    `retry_after_s` comes from the controller's refusal.
    """
    told_s: float | None = None
    if record.outcome in FAILED and record.why is not None:
        row = ROWS[record.why]
        if not row.retry:
            return None
        if row.status in TOLD or retry_after_s is not None:
            told_s = RETRY_AFTER_S if retry_after_s is None else retry_after_s
    elif record.outcome is not Outcome.ABANDONED:
        return None
    return pause_s(told_s, tries, random)


def pause_s(told_s: float | None, tries: int, random: Random) -> float | None:
    """Seconds that the OpenAI SDK waits after this many tries (>= 1); None if it does not retry. `told_s`: the
    `Retry-After` of the answer; None without one.
    """
    if told_s is not None and told_s > 0.0:
        return told_s if told_s <= MAX_OBEYED_S else None
    own_s: float = min(MAX_S, FIRST_S * 2.0 ** (tries - 1))
    return own_s * (1.0 - JITTER * random.random())


def from_the_first(record: Record, waited_s: float) -> None:
    """Change the record of the last try to the record of the whole request. Its times then count from the client's
    first try, `waited_s` seconds earlier.
    """
    record.queue_s += waited_s
    record.e2e_s += waited_s
    if record.ttft_s is not None:
        record.ttft_s += waited_s
    slo = record.request.slo or record.request.tier.slo
    record.good = record.good and slo.met(record.ttft_s, record.tpot_s, record.e2e_s, record.output_tokens)
