"""Deadlines of a request in each of its phases."""

from __future__ import annotations

from typing import Final

from gateway.core.policy import AdmissionMode
from gateway.core.request_state import RequestState
from gateway.core.results import Reason

# The caller reports the progress of an answer at most once in this time, so a report may be this late. The idle
# deadline is set later by as much: it may fire late, but never early.
PROGRESS_EVERY_S: Final = 0.25


def next_deadline(live: RequestState) -> tuple[float, Reason]:
    """The earliest deadline of a request in its present state, and the reason to give when it passes.

    `queue` counts from body complete while the request waits. An enforced objective whose bound passes earlier ends the
    wait earlier. `ttft` counts from sent until the first content token, if `Request.visible`. `idle` counts from the
    last progress after that, except while the attempt is paused. An answer whose tokens cannot be seen has only `idle`,
    once its body has begun. `total` counts from head received in every phase.
    """
    request, timeouts = live.request, live.timeouts
    total_at = request.head_at + timeouts.total_s
    if live.waiting:
        # A total timeout in the queue is reported as a queue timeout, because a retry may succeed.
        queue_at = request.body_at + timeouts.queue_s
        is_first = live.deadline < queue_at and live.deadline <= total_at
        if is_first and request.tier.admission.mode is AdmissionMode.ENFORCE:
            return live.deadline, Reason.PREDICTED
        return min(total_at, queue_at), Reason.QUEUE_TIMEOUT
    if not live.open:
        return total_at, Reason.TOTAL_TIMEOUT
    attempt = live.committed or live.open[-1]
    if attempt.slot.paused or not (live.visible or attempt.has_begun):
        return total_at, Reason.TOTAL_TIMEOUT
    if attempt.first_at is not None or attempt.has_begun:
        idle_at = attempt.last_at + timeouts.idle_s + PROGRESS_EVERY_S
        if idle_at <= total_at:
            return idle_at, Reason.IDLE_TIMEOUT
    elif attempt.sent_at is not None:
        ttft_at = attempt.sent_at + timeouts.ttft_s
        if ttft_at < total_at:
            return ttft_at, Reason.TTFT_TIMEOUT
    return total_at, Reason.TOTAL_TIMEOUT
