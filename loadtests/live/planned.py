"""One request of a live experiment: its contents and its planned time, and later its outcome."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.request import Outcome, Request


@dataclass(slots=True)
class PlannedRequest:
    """Times are seconds from the beginning.

    Latencies count from `at`, when it was due, not from `sent_s`: a late client must not make the server look faster.
    """

    at: float
    tier: str
    key: str
    prompt_tokens: int
    output_tokens: int
    bound_s: float
    """TTFT objective, in seconds."""
    sent_s: float | None = None
    first_s: float | None = None
    """Time of the first token."""
    ended_s: float | None = None
    status: int = 0
    reason: str = ""
    """The reason of a refusal or an error; empty if there was none."""
    tokens: int = 0

    @property
    def late_s(self) -> float:
        """Seconds by which it was sent too late."""
        return 0.0 if self.sent_s is None else self.sent_s - self.at

    @property
    def ttft_s(self) -> float | None:
        """Seconds from when it was due to its first token."""
        return None if self.first_s is None else self.first_s - self.at

    @property
    def e2e_s(self) -> float | None:
        """Seconds from `at` to the end; None unless it finished."""
        return self.ended_s - self.at if self.finished and self.ended_s is not None else None

    @property
    def finished(self) -> bool:
        """Whether the whole answer arrived, with the wanted length."""
        return self.ended_s is not None and not self.reason

    @property
    def good(self) -> bool:
        """Whether it finished, with its first token in time."""
        ttft_s = self.ttft_s
        return self.finished and ttft_s is not None and ttft_s <= self.bound_s

    def hopes(self, request: Request, now_s: float) -> bool:
        """Whether the request is under way and may still be good."""
        return (now_s if request.first_s is None else request.first_s) - self.at <= self.bound_s

    def arrival(self, model: str) -> Arrival:
        """The arrival for the generator. Each tenant has its own key, so the tenant's name stands for the key."""
        return Arrival(self.at, self.key, self.key, model, self.prompt_tokens, self.output_tokens)

    def note(self, request: Request) -> None:
        """Take over the outcome of the request."""
        self.sent_s, self.first_s, self.status = request.sent_s, request.first_s, request.status
        self.tokens = request.tokens
        if request.outcome is Outcome.UNFINISHED:
            return
        self.ended_s, self.reason = request.ended_s, request.reason
        if request.outcome is Outcome.FINISHED and request.tokens != self.output_tokens:
            self.reason = "answer cut short"
