"""When requests are sent: each at the time that was fixed beforehand, whatever became of those before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Shot:
    """One request: what is asked for and when, and then what became of it.

    Times are seconds from the beginning. Latencies count from `at`, when it should have been sent, not from `sent_s`:
    a client that is late does not make the server look faster.
    """

    at: float
    tier: str
    key: str
    prompt_tokens: int
    output_tokens: int
    bound_s: float
    """TTFT within which it is good."""
    sent_s: float | None = None
    first_s: float | None = None
    """When the first token came."""
    ended_s: float | None = None
    status: int = 0
    reason: str = ""
    """Why it was refused, or what went wrong; empty if nothing did."""
    tokens: int = 0

    @property
    def late_s(self) -> float:
        """How much later it was sent than it should have been."""
        return 0.0 if self.sent_s is None else self.sent_s - self.at

    @property
    def ttft_s(self) -> float | None:
        """From when it should have been sent."""
        return None if self.first_s is None else self.first_s - self.at

    @property
    def e2e_s(self) -> float | None:
        """From when it should have been sent; None unless it finished."""
        return self.ended_s - self.at if self.finished and self.ended_s is not None else None

    @property
    def finished(self) -> bool:
        """Whether the whole answer came, as long as it was to be."""
        return self.ended_s is not None and not self.reason

    @property
    def good(self) -> bool:
        """Finished, and its first token in time."""
        ttft_s = self.ttft_s
        return self.finished and ttft_s is not None and ttft_s <= self.bound_s

    def hopes(self, now_s: float) -> bool:
        """Whether it may still turn out good."""
        if self.ended_s is not None:
            return False
        return (now_s if self.first_s is None else self.first_s) - self.at <= self.bound_s


async def pace(
    shots: Sequence[Shot],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    send: Callable[[Shot], None],
) -> None:
    """Send all `shots`, which are in order of time. `clock` counts seconds from the beginning."""
    for shot in shots:
        while (left_s := shot.at - clock()) > 0:
            await sleep(left_s)
        shot.sent_s = clock()
        send(shot)
