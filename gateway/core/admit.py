"""What becomes of a request that cannot be sent at once: wait, push another out, or be shed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from gateway.core.ledger import Live
from gateway.core.pools import PoolNow
from gateway.core.rules import AdmissionMode


class Verdict(Enum):
    """What to do with a newcomer for whom there is no slot."""

    WAIT = auto()
    EVICT = auto()
    """Wait, in the place of a less urgent request that is shed instead."""
    SHED = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict, and whom it costs its place."""

    verdict: Verdict
    victim: Live | None = None


def decide(live: Live, pool: PoolNow) -> Decision:
    """The waiting room is bounded by count and by bytes of held bodies; a more urgent tier displaces a less urgent.

    Tiers whose admission is not enforced always wait: their deadline is then the only thing that ends the wait.
    """
    ask = live.ask
    if ask.tier.admission.mode is not AdmissionMode.ENFORCE or _fits(live, pool):
        return Decision(Verdict.WAIT)
    victim = pool.room.last_below(ask.tier.priority)
    if victim is not None and pool.room.bytes - victim.ask.body_bytes + ask.body_bytes <= pool.spec.queue_bytes:
        return Decision(Verdict.EVICT, victim)
    return Decision(Verdict.SHED)


def _fits(live: Live, pool: PoolNow) -> bool:
    room, spec = pool.room, pool.spec
    return len(room) < spec.queue_limit and room.bytes + live.ask.body_bytes <= spec.queue_bytes
