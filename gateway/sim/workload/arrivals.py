"""Arrivals of a run: requests in order of time. They are identical for every policy that is compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

BLOCK_TOKENS: Final = 512
"""Prompt tokens per hash, as in the traces of Mooncake."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as its client sends it."""

    at: float
    """Seconds from the start of the run."""
    tier: str
    tenant: str
    model: str
    prompt_tokens: int
    output_tokens: int
    """Tokens that the model would generate without a cap."""
    stream: bool = True
    max_tokens: int | None = None
    session: int | None = None
    prefix: tuple[int, ...] = ()
    """Hashes of the leading blocks of the prompt."""


class Workload(Protocol):
    """A source of arrivals in order of time. The same seed gives the same arrivals."""

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The requests of one run."""


class Traffic(Workload, Protocol):
    """A workload whose rate can be changed."""

    def faster(self, times: float) -> Traffic:
        """A copy whose rate is `times` as high."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Requests of one tier and one tenant, with fixed lengths and exponential gaps."""

    rate_per_s: float
    duration_s: float
    prompt_tokens: int = 512
    output_tokens: int = 128
    tier: str = "default"
    tenant: str = "default"
    model: str = "default"

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The requests of one run."""
        draw = Random(seed)
        at = draw.expovariate(self.rate_per_s)
        while at < self.duration_s:
            yield Arrival(at, self.tier, self.tenant, self.model, self.prompt_tokens, self.output_tokens)
            at += draw.expovariate(self.rate_per_s)
