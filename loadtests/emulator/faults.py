"""Faults of a replica, by name, and their details."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum


class FaultKind(StrEnum):
    """Every fault. Faults of answers take effect on new requests; SLOW, PAUSE, REFUSE, DEAD at once."""

    SLOW = "slow"
    """Every step takes `factor` times as long."""
    PAUSE = "pause"
    """Connections are accepted and never answered, /health included; running streams freeze. As under SIGSTOP."""
    REFUSE = "refuse"
    """No new connection: the port is closed, or with `how` "reset" every new connection is reset. Open connections
    close after their current answer."""
    DEAD = "dead"
    """As if the process had been killed: every connection is reset, the port is closed, all work is lost."""
    DIE_ON_MARKER = "die_on_marker"
    """A body that contains `marker` makes the replica DEAD."""
    STATUS_503 = "status_503"
    """A fast 503 with `Retry-After: retry_after_s` to every generation."""
    STATUS_500 = "status_500"
    """A fast 500 to every generation, as vLLM gives while it shuts down."""
    UNHEALTHY = "unhealthy"
    """/health answers 503; everything else works."""
    ERROR_200 = "error_200"
    """A 200 whose stream carries a 503, as under vLLM's --max-num-queued-reqs. An answer that is not streamed is a
    plain 503.
    """
    RESET = "reset"
    """RST after `after_events` events, or `after_bytes` bytes of the answer."""
    TRUNCATED = "truncated"
    """The connection is closed, without the last chunk, after `after_events` events or `after_bytes` bytes."""
    STALL = "stall"
    """Silence after `after_events` events or `after_bytes` bytes; the connection stays open."""
    GARBAGE = "garbage"
    """`how` "http": bytes that are not HTTP; "json": event number `after_events` is broken JSON, the rest is intact."""
    LONG_LINE = "long_line"
    """After `after_events` events one line of 10 MB without an end."""
    SHUTDOWN_LIKE = "shutdown_like"
    """After `after_events` events an error event, then `[DONE]` and a clean end."""
    BALLOON = "balloon"
    """Stop strings and the end of sequence are ignored: every answer runs to max_tokens."""
    REPEAT = "repeat"
    """Every answer is the same phrase, to max_tokens."""
    SET_COOKIE = "set_cookie"
    """Every answer sets a cookie."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its details. If an answer is not streamed, `after_events` cuts its body in the middle."""

    kind: FaultKind
    factor: float = 8.0
    after_events: int = 0
    after_bytes: int | None = None
    """Bytes before the fault takes effect, counted from the first byte of the status line."""
    how: str = ""
    marker: str = "kill-the-replica"
    retry_after_s: int = 1
    count: int | None = None
    """Number of requests that get the fault, after which it is over; None: all requests."""
    for_s: float | None = None
    """Real seconds after which the fault is over; None: it lasts until it is changed."""

    def __post_init__(self) -> None:
        for name, bad in (
            ("factor", not self.factor > 0),
            ("after_events", self.after_events < 0),
            ("after_bytes", self.after_bytes is not None and self.after_bytes < 0),
            ("how", self.how not in HOW.get(self.kind, ("",))),
            ("marker", not self.marker),
            ("count", self.count is not None and self.count < 1),
            ("for_s", self.for_s is not None and not self.for_s > 0),
        ):
            if bad:
                raise ValueError(f"{name}: {getattr(self, name)!r} is out of range for {self.kind}")


HOW = {FaultKind.REFUSE: ("", "close", "reset"), FaultKind.GARBAGE: ("", "http", "json")}
_TYPES: dict[str, tuple[type, ...]] = {
    "factor": (int, float),
    "after_events": (int,),
    "after_bytes": (int,),
    "how": (str,),
    "marker": (str,),
    "retry_after_s": (int,),
    "count": (int,),
    "for_s": (int, float),
}


def parse_fault(value: object) -> Fault | None:
    """`{"fault": "slow", "factor": 8}` -> Fault; `{"fault": null}` -> None. Raises ValueError naming the field."""
    if not isinstance(value, dict) or "fault" not in value:
        raise ValueError('fault: missing; write {"fault": NAME, ...} or {"fault": null}')
    details = {key: given for key, given in value.items() if key not in ("fault", "replica")}
    for key, given in details.items():
        if key not in _TYPES:
            raise ValueError(f"{key}: unknown; known are {', '.join(f.name for f in fields(Fault)[1:])}")
        if type(given) not in _TYPES[key]:
            raise ValueError(f"{key}: {given!r} has the wrong type")
    name = value["fault"]
    if name is None:
        return None
    if name not in list(FaultKind):
        raise ValueError(f"fault: {name!r} is unknown; known: {', '.join(FaultKind)}")
    return Fault(FaultKind(name), **details)
