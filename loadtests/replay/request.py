"""One request of a load test: when it is due, what is asked for, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gateway.sim.workload.arrivals import Arrival


class Outcome(IntEnum):
    """How a request ended, as its client saw it. The numbers are those in `requests.npy`."""

    FINISHED = 0
    """The whole answer came."""
    CUT = 1
    """The gateway ended an answer that had begun, and said so in it."""
    SHED = 2
    """Refused for want of capacity or time: 429, 503 or 504 before the first token."""
    QUOTA = 3
    """The tenant's own limit (429): counted apart."""
    INVALID = 4
    """Any other 4xx: counted apart."""
    FAILED = 5
    """Any other 5xx, a status that is no answer, or a 200 that has none in it."""
    ERROR_EVENT = 6
    """The stream carried an error."""
    TRUNCATED = 7
    """The connection or the stream ended before the answer did."""
    RESET = 8
    """The connection was lost before any of the answer came."""
    CONNECT = 9
    """No connection could be had."""
    TIMEOUT = 10
    """The client's own patience ended."""
    NO_HTTP = 11
    """The answer was no HTTP, or no JSON."""
    UNFINISHED = 12
    """Still under way when the test ended and its grace was over."""
    INTERRUPTED = 13
    """Still under way when somebody stopped the test: counted apart, unless it was late already."""

    @property
    def counts(self) -> bool:
        """Whether it stands in the denominator of goodput; what was stopped does, too, once it is late."""
        return self not in (Outcome.QUOTA, Outcome.INVALID, Outcome.INTERRUPTED)


@dataclass(slots=True)
class Request:
    """Times are seconds from the beginning of the test, by one monotonic clock.

    Latencies count from `arrival.at`, when it was due, not from when it was sent: a client that is late does not make
    the target look faster. That holds for one that was sent again, too.
    """

    number: int
    arrival: Arrival
    sent_s: float = 0.0
    """When it was first handed to a connection, or to the opening of one."""
    tried_s: float = 0.0
    """When it was sent the last time."""
    first_s: float | None = None
    """The first content, reasoning or tool call; None where no stream was asked for. Of one that
    came in one piece, or was an end alone, when that came."""
    last_s: float = 0.0
    """The last content."""
    ended_s: float = 0.0
    longest_gap_s: float = 0.0
    """Between two pieces of content."""
    chunks: int = 0
    """Pieces of content."""
    outcome: Outcome = Outcome.UNFINISHED
    status: int = 0
    reason: str = ""
    """Why it did not finish: the gateway's reason where it gave one."""
    retry_after_s: float | None = None
    queue_s: float | None = None
    """In the gateway's queue, as `server-timing` says."""
    replica: str = ""
    served_tier: str = ""
    prompt_tokens: int | None = None
    """As the target counted them; None where it did not say."""
    cached_tokens: int | None = None
    """Those of them that the target found in a prefix cache; None where it did not say."""
    output_tokens: int | None = None
    tries: int = 1

    @property
    def tokens(self) -> int:
        """Of the answer: as the target counted them, else the pieces that came."""
        return self.chunks if self.output_tokens is None else self.output_tokens

    @property
    def heard_s(self) -> float:
        """When it was sent the last time, or its last content came: its client has heard nothing since."""
        return self.tried_s if self.first_s is None else self.last_s

    @property
    def late_s(self) -> float:
        """How much later it was sent than it was due: the generator's own fault."""
        return self.sent_s - self.arrival.at
