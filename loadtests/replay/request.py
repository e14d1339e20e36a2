"""One request of a load test: its time, its contents and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gateway.sim.workload.arrivals import Arrival

FIRST_TURN = 1 << 31
"""Number of the first later turn of a conversation: the other half of the numbers is that of arrivals."""


class Outcome(IntEnum):
    """The outcome of a request for its client. The numbers are those in `requests.npy`."""

    FINISHED = 0
    """The whole answer arrived."""
    CUT = 1
    """The gateway cut an answer off, with a reason in the answer."""
    SHED = 2
    """Refused for lack of capacity or time: 429, 503 or 504 before the first token."""
    QUOTA = 3
    """The tenant's own limit (429): counted apart."""
    INVALID = 4
    """Any other 4xx: counted apart."""
    FAILED = 5
    """Any other 5xx, or an unknown status."""
    ERROR_EVENT = 6
    """The stream contained an error."""
    TRUNCATED = 7
    """The connection or the stream ended before the answer did."""
    RESET = 8
    """The connection was lost before the answer began."""
    CONNECT = 9
    """There was no connection."""
    TIMEOUT = 10
    """The client lost patience."""
    NO_HTTP = 11
    """The answer was not HTTP, or not JSON."""
    UNFINISHED = 12
    """Still open when the grace after the test was over."""
    INTERRUPTED = 13
    """The request was open when the user stopped the test. It is counted apart, unless it was late already."""

    EMPTY = 14
    """A 200 that ended in order, without a token."""

    @property
    def counts(self) -> bool:
        """Whether the request is in the denominator of goodput. A request that was open at the stop is in it if it was
        late.
        """
        return self not in (Outcome.QUOTA, Outcome.INVALID, Outcome.INTERRUPTED)


@dataclass(slots=True)
class Request:
    """Times are seconds from the beginning of the test, by one monotonic clock.

    Latencies count from `arrival.at`, when it was due, not from the sending: a late client must not make the target
    look faster. The same holds after a retry.
    """

    number: int
    arrival: Arrival
    sent_s: float = 0.0
    """Time of the first try: when a connection got it, or began to open for it."""
    tried_s: float = 0.0
    """Time of the last try."""
    first_s: float | None = None
    """Time of the first content, reasoning or tool call; None without a stream. If a stream arrives in one piece, or
    has no content but an end, this is the time of its end.
    """
    last_s: float = 0.0
    """Time of the last content."""
    ended_s: float = 0.0
    longest_gap_s: float = 0.0
    """Longest gap between two pieces of content."""
    chunks: int = 0
    """Number of pieces of content."""
    outcome: Outcome = Outcome.UNFINISHED
    status: int = 0
    reason: str = ""
    """The reason why it did not finish: the gateway's own if it gave one."""
    message: str = ""
    """The target's own words about it."""
    retry_after_s: float | None = None
    queue_s: float | None = None
    """Time in the gateway's queue, from `server-timing`."""
    replica: str = ""
    served_tier: str = ""
    prompt_tokens: int | None = None
    """Tokens as the target counted them; None if it did not say."""
    cached_tokens: int | None = None
    """Prompt tokens that the target found in a prefix cache; None if it did not say."""
    output_tokens: int | None = None
    tries: int = 1
    keeps: bool = False
    """Whether the text of the answer is kept: a conversation, or the user, needs it."""
    said: str | None = None
    """The text of the answer, if it is kept and arrived."""

    @property
    def tokens(self) -> int:
        """Tokens of the answer: as the target counted them, else the received pieces."""
        return self.chunks if self.output_tokens is None else self.output_tokens

    @property
    def heard_s(self) -> float:
        """When its client last sent or received something: the time of the last try, or of the last content."""
        return self.tried_s if self.first_s is None else self.last_s

    @property
    def late_s(self) -> float:
        """Seconds by which it was sent too late: the generator's own error."""
        return self.sent_s - self.arrival.at
