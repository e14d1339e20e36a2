"""Answers of the controller: commands, each for one request, carried out by the caller after the call has returned."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.request import HedgeResult, Reason, Record


@dataclass(slots=True, init=False)
class Dispatch:
    """Open `attempt` of request `request_id` at `replica`. `max_tokens` caps the output of each choice; 0: no cap."""

    request_id: int
    attempt: int
    replica: str
    max_tokens: int
    degraded: bool = False
    """Whether the cap is lower than the client asked for, so that the answer is in time."""
    model: str = ""
    """The fallback model that serves it; empty: its own model."""

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
    """From now on the client gets the answer of `attempt`, and no other."""

    request_id: int
    attempt: int
    hedged: HedgeResult | None = None
    """Which attempt won, if the request was hedged."""

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
    """End the request with an error: a status before a commit, an error event after it.

    `retry_after_s` inf: a retry never makes sense; None: unknown.
    """

    request_id: int
    why: Reason
    retry_after_s: float | None = None
    detail: str = ""


@dataclass(slots=True)
class Cut:
    """End the part of the answer that the client already has as an incomplete answer, without an error. Its attempt is
    cancelled next.

    `prompt_tokens` is an estimate for the usage, which the engine will not send.
    """

    request_id: int
    why: Reason
    prompt_tokens: int


@dataclass(slots=True, init=False)
class Ended:
    """The request is over, and every slot it held is free."""

    record: Record

    def __init__(self, record: Record) -> None:
        self.record = record


Command = Dispatch | Commit | Cancel | Refuse | Cut | Ended
