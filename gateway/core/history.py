"""The history of one request: the decision on it, and each of its attempts. It is for people; no decision reads it.

A `Record` carries it, the journal does not: a replay makes it anew. Times are of `time.monotonic`, in seconds.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)
class Origin:
    """Facts about a request that only its client connection knows. They are for people, and no decision reads them."""

    __slots__ = ("key", "request_id", "traceparent")

    def __init__(self, request_id: str = "", key: str = "", traceparent: str = "") -> None:
        self.request_id = request_id
        """The id that the client knows: its own, or the one that it was given."""
        self.key = key
        """The first digits of the hash of the client's key, as in the policy; empty if no key was needed."""
        self.traceparent = traceparent
        """The client's W3C trace context; empty if it sent none that is well formed."""


UNKNOWN_ORIGIN: Final = Origin()


@mypyc_attr(acyclic=True)
class EarlyRefusal:
    """A request that was refused before it became a `Request`. `why`: value of its `Reason`."""

    __slots__ = ("at", "key", "param", "request_id", "retry_after_s", "tenant", "tier", "why")

    def __init__(self, at: float, why: str, request_id: str = "") -> None:
        self.at = at
        self.why = why
        self.request_id = request_id
        self.param = ""
        """The field of the request that the error names; empty if none."""
        self.tenant = ""
        """Empty if the key is unknown, like the next two."""
        self.tier = ""
        self.key = ""
        self.retry_after_s: float | None = None


@mypyc_attr(acyclic=True)
class AttemptHistory:
    """One attempt that has ended."""

    __slots__ = (
        "answer_id",
        "cached_tokens",
        "end",
        "ended_at",
        "expected_ttft_s",
        "first_at",
        "hedge",
        "id",
        "opened_at",
        "output_tokens",
        "pool",
        "prompt_tokens",
        "reasoning_tokens",
        "replica",
        "sent_at",
        "status",
    )

    def __init__(self, pool: str, replica: str, hedge: bool, end: str, opened_at: float, ended_at: float) -> None:
        self.id = 0
        self.pool = pool
        self.replica = replica
        self.hedge = hedge
        """Whether it ran beside a late attempt."""
        self.end = end
        """Value of its `AttemptOutcome`."""
        self.opened_at = opened_at
        self.ended_at = ended_at
        self.sent_at: float | None = None
        self.first_at: float | None = None
        self.expected_ttft_s: float | None = None
        """Predicted TTFT from `opened_at`; None while costs are unknown."""
        self.status: int | None = None
        """HTTP status of the replica; None if none came."""
        self.prompt_tokens: int | None = None
        """Tokens by the engine's usage, like the next three; None if it sent none, or none that is possible."""
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.answer_id = ""
        """The engine's id of the answer; empty if it is unknown."""


@mypyc_attr(acyclic=True)
class History:
    """The last decision of admission on a request, its attempts, and the error that its client got.

    Without a decision, `rule` is empty: an impossible request, or one beyond a limit of its tenant, is never forecast.
    """

    __slots__ = (
        "answered_by",
        "attempts",
        "binds",
        "detail",
        "e2e_s",
        "estimated_tokens",
        "max_tokens",
        "mode",
        "retry_after_s",
        "rule",
        "runner_up",
        "runner_up_breach",
        "runner_up_ttft_s",
        "threshold",
        "tpot_s",
        "ttft_s",
        "wait_s",
    )

    def __init__(self, attempts: list[AttemptHistory], estimated_tokens: int, max_tokens: int) -> None:
        self.attempts = attempts
        """In the order in which they ended."""
        self.answered_by = 0
        """Id of the attempt whose answer, or error, was forwarded; 0 if none was."""
        self.estimated_tokens = estimated_tokens
        """Prompt tokens as estimated on arrival: a high estimate."""
        self.max_tokens = max_tokens
        """Most output tokens of each choice; 0 if nothing is generated."""
        self.rule = ""
        """The rule that decided (`RuleName`)."""
        self.mode = ""
        """The admission mode of the tier (`AdmissionMode`)."""
        self.binds = ""
        """The percentile that would have broken, such as "TTFT p99"; empty if P(breach) decided, or nothing broke."""
        self.threshold: float | None = None
        """Largest P(breach) that is admitted."""
        self.wait_s: float | None = None
        """Forecast, from the time of the decision; the next three from body complete. None without a forecast."""
        self.ttft_s: float | None = None
        self.tpot_s: float | None = None
        self.e2e_s: float | None = None
        self.runner_up = ""
        """The replica that was forecast beside the chosen one; empty if there was no need."""
        self.runner_up_ttft_s: float | None = None
        self.runner_up_breach: float | None = None
        self.detail = ""
        """The text of the error; empty if the request was not refused, or the reason says everything."""
        self.retry_after_s: float | None = None
        """Seconds after which the client was told to try again; None if it was told nothing, inf for never."""
