"""The section of a pool that says how requests are kept while it has no replica."""

from __future__ import annotations

from pydantic import model_validator

from gateway.core import pool_spec
from gateway.policy.sections import units
from gateway.policy.sections.discover import FromText
from gateway.policy.sections.section import duration, field, optional, plain
from gateway.policy.sections.values import Count, Duration, Size, WebUrl

_HOLD = pool_spec.Hold()


class WakeSection(FromText):
    """How replicas are called when a pool without one has requests."""

    url: WebUrl | None = optional("Gets a POST, again and again with longer pauses while requests are on hold.")
    sleeping: bool = plain(
        False, "Whether vLLM replicas are asked whether they sleep (/is_sleeping), and are woken then (/wake_up)."
    )

    @model_validator(mode="after")
    def _one(self) -> WakeSection:
        if self.url is None and not self.sleeping:
            raise ValueError("calls nothing: give a `url`, or `sleeping: true`")
        return self


class HoldSection(FromText):
    """Requests that are kept while their pool has no replica."""

    time: Duration = duration(_HOLD.time_s, "Longest time on hold; the client's deadline may be earlier.")
    requests: Count = plain(_HOLD.limit, "Requests that may be on hold; more are refused with 503.")
    bytes: Size = field(_HOLD.bytes, units.write_size(_HOLD.bytes), "Bytes of request bodies that may be on hold.")
    wake: WakeSection | None = optional("How to start or wake replicas when requests are on hold.")
