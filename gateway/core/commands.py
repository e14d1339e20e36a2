"""Answers of the controller: addressed commands, carried out by the caller after the call has returned."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.request import HedgeResult, Reason, Record


@dataclass(slots=True, init=False)
class Dispatch:
    """Open `attempt` of ask `ask` at `replica`, with this cap on the output of each choice, 0 for none."""

    ask: int
    attempt: int
    replica: str
    max_tokens: int
    degraded: bool = False
    """Whether the cap is lower than was asked for, so that the answer is in time."""

    def __init__(self, ask: int, attempt: int, replica: str, max_tokens: int, degraded: bool = False) -> None:
        self.ask = ask
        self.attempt = attempt
        self.replica = replica
        self.max_tokens = max_tokens
        self.degraded = degraded


@dataclass(slots=True, init=False)
class Commit:
    """From now on the client gets what `attempt` says, and nothing else."""

    ask: int
    attempt: int
    hedged: HedgeResult | None = None
    """Who won, if it was sent a second time for being late."""

    def __init__(self, ask: int, attempt: int, hedged: HedgeResult | None = None) -> None:
        self.ask = ask
        self.attempt = attempt
        self.hedged = hedged


@dataclass(slots=True)
class Cancel:
    """Close the upstream connection of `attempt`, then report it finished as cancelled."""

    ask: int
    attempt: int


@dataclass(slots=True)
class Refuse:
    """End the ask with an error: a status if nothing was committed, an error event after that.

    `retry_after_s` inf: trying again never makes sense; None: nothing is known.
    """

    ask: int
    why: Reason
    retry_after_s: float | None = None
    detail: str = ""


@dataclass(slots=True)
class Cut:
    """End the answer that the client has so far, in peace, as one that is incomplete; its attempt is cancelled next.

    `prompt_tokens` is an estimate, for a usage that the engine will not give any more.
    """

    ask: int
    why: Reason
    prompt_tokens: int


@dataclass(slots=True, init=False)
class Ended:
    """The ask is over and every slot it held is free."""

    record: Record

    def __init__(self, record: Record) -> None:
        self.record = record


Command = Dispatch | Commit | Cancel | Refuse | Cut | Ended
