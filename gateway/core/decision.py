"""The decision on a new request: its verdict, and the rule that decided."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum, auto

from gateway.core.fleet.pool import Replica
from gateway.core.offer import Offer
from gateway.core.prediction import NO_CHECKS, Forecast
from gateway.core.queueing.queued_request import QueuedRequest
from gateway.core.results import Reason


class Verdict(Enum):
    """Whether a new request is sent, queued or shed."""

    SEND = auto()
    WAIT = auto()
    SHED = auto()


class RuleName(StrEnum):
    """The rules of admission (admission/rules.py), in the order in which they are asked. The first that decides,
    decides.
    """

    OWN_CACHE = "own-cache"
    NO_OBJECTIVE = "no-objective"
    IN_TIME = "in-time"
    FASTER_REPLICA = "faster-replica"
    TENANT_SHARE = "tenant-share"
    LENGTH_SHARE = "length-share"
    SHADOW = "shadow"
    EXPLORATION = "exploration"
    SPILL = "spill"
    SHORTER_ANSWER = "shorter-answer"
    PREDICTED_BREACH = "predicted-breach"


class Decision:
    """A decision on an offer. It never changes.

    `offer`: what is granted; its pool or its output tokens may differ from what was asked for. `replica`: where the
    request is sent, or would be sent if it were not shed; None if it waits. `rule`: the rule that decided. `forecast`:
    what it was decided on; None if no objective applies. `late`: P(late) of the TTFT objectives that were checked, in
    their order. `victims`: queued requests that give way. `why`, `detail`: reason and error text of a shed request, or
    of the victims. `binds`: the percentile that would break; empty if none would. `runner_up`: another replica that was
    forecast, and its forecast; only admission sets it.
    """

    __slots__ = (
        "binds",
        "detail",
        "forecast",
        "late",
        "offer",
        "replica",
        "rule",
        "runner_up",
        "verdict",
        "victims",
        "why",
    )

    def __init__(
        self,
        verdict: Verdict,
        rule: RuleName,
        offer: Offer,
        replica: Replica | None = None,
        forecast: Forecast | None = None,
        late: list[float] = NO_CHECKS,
        victims: Sequence[QueuedRequest] = (),
        why: Reason = Reason.QUEUE_FULL,
        detail: str = "",
        binds: str = "",
    ) -> None:
        self.verdict = verdict
        self.rule = rule
        self.offer = offer
        self.replica = replica
        self.forecast = forecast
        self.late = late
        self.victims = victims
        self.why = why
        self.detail = detail
        self.binds = binds
        self.runner_up: tuple[str, Forecast] | None = None
