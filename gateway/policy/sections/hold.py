"""The section of a pool that says how requests are kept while it has no replica."""

from __future__ import annotations

from pydantic import Field

from gateway.core import pool_spec
from gateway.policy.sections import units
from gateway.policy.sections.discover import FromText
from gateway.policy.sections.section import duration, field, optional, plain
from gateway.policy.sections.values import Count, Duration, Size, WebUrl

_HOLD = pool_spec.Hold()


class WakeSection(FromText):
    """A URL that is called when a pool without a replica has requests."""

    url: WebUrl = Field(description="Gets a POST, again and again with longer pauses while requests are on hold.")


class HoldSection(FromText):
    """Requests that are kept while their pool has no replica."""

    time: Duration = duration(_HOLD.time_s, "Longest time on hold; the client's deadline may be earlier.")
    requests: Count = plain(_HOLD.limit, "Requests that may be on hold; more are refused with 503.")
    bytes: Size = field(_HOLD.bytes, units.write_size(_HOLD.bytes), "Bytes of request bodies that may be on hold.")
    wake: WakeSection | None = optional("A URL to call when requests are on hold.")
