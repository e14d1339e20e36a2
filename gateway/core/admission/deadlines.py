"""Deadlines of a request in each of its phases."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.policy import AdmissionMode
from gateway.core.request import Reason
from gateway.core.request_state import RequestState

# The caller reports progress at most this often, so the idle deadline passes this much later: late, never early.
PROGRESS_EVERY_S: Final = 0.25


def next_deadline(live: RequestState) -> tuple[float, Reason]:
    """The earliest deadline of a request in its present state, and the reason to give when it passes.

    `queue` counts from body complete while the request waits. An enforced objective that is missed earlier ends the
    wait earlier. `ttft` counts from sent until the first content token, if `Request.visible`. `idle` counts from the
    last progress after that, except while the attempt is paused. `total` counts from head received, always.
    """
    request, timeouts = live.request, live.timeouts
    total = request.head_at + timeouts.total_s, Reason.TOTAL_TIMEOUT
    if live.waiting:
        queue = request.body_at + timeouts.queue_s, Reason.QUEUE_TIMEOUT
        if live.deadline < queue[0] and request.tier.admission.mode is AdmissionMode.ENFORCE:
            queue = live.deadline, Reason.PREDICTED
        # A total timeout in the queue is reported as a queue timeout: another try may be luckier.
        return min((total[0], Reason.QUEUE_TIMEOUT), queue)
    if not live.visible or not live.open:
        return total
    attempt = live.committed or live.open[-1]
    if attempt.slot.paused:
        return total
    if attempt.first_at is not None:
        return min(total, (attempt.last_at + timeouts.idle_s + PROGRESS_EVERY_S, Reason.IDLE_TIMEOUT))
    if attempt.sent_at is not None:
        return min(total, (attempt.sent_at + timeouts.ttft_s, Reason.TTFT_TIMEOUT))
    return total


def slo_deadline(live: RequestState) -> float:
    """Time at which a queued request has certainly missed its objective. A tier's queue is served in this order.

    A streamed answer needs its first token by then, any other its end. Without an objective it is the queue timeout.
    """
    request, slo = live.request, live.slo
    bound_s = min(slo.ttft_bound_s, slo.e2e_bound_s) if request.stream else slo.e2e_bound_s
    return request.body_at + (live.timeouts.queue_s if bound_s == math.inf else bound_s)
