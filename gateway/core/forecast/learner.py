"""Base of the parts that learn from attempts."""

from __future__ import annotations

from gateway.core.request_state import Attempt
from gateway.core.results import AttemptResult


class Learner:
    """Gets a call at each event of every attempt, after the counts of its pool and replica have changed. By default the
    calls do nothing.
    """

    def opened(self, attempt: Attempt, now: float) -> None:
        """The attempt was dispatched."""

    def first_token(self, attempt: Attempt, now: float) -> None:
        """The first content, reasoning or tool-call token of a streamed answer came. Called at most once per
        attempt.
        """

    def progress(self, attempt: Attempt, tokens: int, now: float) -> None:
        """The answer has `tokens` so far."""

    def closed(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        """The attempt has ended, and its slot is free."""
