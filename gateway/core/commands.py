"""Commands: what the controller answers to a call. Each command is for one request. The caller carries it out after the
call has returned.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.results import HedgeResult, Reason, Record


@dataclass(slots=True, init=False)
class Dispatch:
    """Open `attempt` of request `request_id` at `replica`. `max_tokens` caps the output of each choice; 0 means no
    cap.
    """

    request_id: int
    attempt: int
    replica: str
    max_tokens: int
    degraded: bool = False
    """Whether the cap is lower than the client asked for, so that the answer comes in time."""
    model: str = ""
    """Name of the fallback model that serves the request; empty if its own model serves it."""

    def __init__(
        self, request_id: int, attempt: int, replica: str, max_tokens: int, degraded: bool = False, model: str = ""
    ) -> None:
        self.request_id = request_id
        self.attempt = attempt
        self.replica = replica
        self.max_tokens = max_tokens
        self.degraded = degraded
        self.model = model


@dataclass(slots=True, init=False)
class Commit:
    """Forward the answer of `attempt` to the client from now on. No other attempt's answer is forwarded afterwards."""

    request_id: int
    attempt: int
    hedged: HedgeResult | None = None
    """Whether the hedge won or lost; None if the request was not hedged."""

    def __init__(self, request_id: int, attempt: int, hedged: HedgeResult | None = None) -> None:
        self.request_id = request_id
        self.attempt = attempt
        self.hedged = hedged


@dataclass(slots=True)
class Cancel:
    """Close the upstream connection of `attempt`, then report it finished as cancelled."""

    request_id: int
    attempt: int


@dataclass(slots=True)
class Refuse:
    """End the request with an error: an HTTP error before a commit, an error event after it.

    `retry_after_s`: seconds until a retry makes sense; inf if a retry never makes sense, None if the time is unknown.
    """

    request_id: int
    why: Reason
    retry_after_s: float | None = None
    detail: str = ""


@dataclass(slots=True)
class Cut:
    """End the answer that has begun as an incomplete answer, without an error. A `Cancel` of its attempt follows.

    `prompt_tokens`: estimate for the usage in the answer, which the engine will not send.
    """

    request_id: int
    why: Reason
    prompt_tokens: int


@dataclass(slots=True, init=False)
class Ended:
    """The request is over, and all its slots are free."""

    record: Record

    def __init__(self, record: Record) -> None:
        self.record = record


Command = Dispatch | Commit | Cancel | Refuse | Cut | Ended
