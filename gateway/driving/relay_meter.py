"""The counts of a relay. The decider adds them to its metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gateway.core.estimators.histograms import LogHistogram
from gateway.core.history import EarlyRefusal
from gateway.core.results import AttemptOutcome, Callback, CountSource, MirrorResult, Record
from gateway.driving import frames
from gateway.driving.channel import Frame
from gateway.wire.answers.oddity import Oddity


class RelayMeter:
    """Receives facts about requests. The decider itself counts how requests and attempts end."""

    def __init__(self, tell: Callable[[Frame], None]) -> None:
        self._tell = tell
        self._edges: Sequence[float] = ()
        self._gaps: dict[tuple[str, str], tuple[LogHistogram, LogHistogram]] = {}
        """By (tier, pool): the times between events of streams, and those that are told."""

    def configure(self, edges: Sequence[float]) -> None:
        """Count times in these buckets. Those of the next decider are ignored: it is told the edges of the counts."""
        self._edges = self._edges or edges

    def ended(self, record: Record) -> None:
        """The decider counts it."""

    def upstream_error(self, pool: str, replica: str, end: AttemptOutcome) -> None:
        """The decider counts it."""

    def refused_early(self, refusal: EarlyRefusal) -> None:
        """Count one request that was refused before it was parsed."""
        self._tell((frames.METER, "refused_early", frames.early_row(refusal)))

    def oddity(self, pool: str, replica: str, kind: Oddity) -> None:
        """Count one answer, or one event, that was proper HTTP but had odd content."""
        self._tell((frames.METER, "oddity", pool, replica, kind.value))

    def token_count(self, source: CountSource) -> None:
        """Count one answer of `count_tokens`."""
        self._tell((frames.METER, "token_count", source.value))

    def copied(self, model: str, pool: str, result: MirrorResult) -> None:
        """Count one copy that was due."""
        self._tell((frames.METER, "copied", model, pool, result.value))

    def bug(self, callback: Callback) -> None:
        """Count one exception (a bug) that a callback raised."""
        self._tell((frames.METER, "bug", callback.value))

    def gaps(self, tier: str, pool: str) -> LogHistogram:
        """The histogram to which an exchange adds the seconds between content events of a stream."""
        found = self._gaps.get((tier, pool))
        if found is None:
            found = self._gaps[tier, pool] = LogHistogram(self._edges), LogHistogram(self._edges)
        return found[0]

    def flush(self, now: float) -> None:
        """Tell the decider the times that were counted since the last call."""
        edges = (*self._edges, math.inf)
        for (tier, pool), (seen, told) in self._gaps.items():
            if seen.sum == told.sum:
                continue
            places = [place for place, count in enumerate(seen.counts) if count != told.counts[place]]
            new = [seen.counts[place] - told.counts[place] for place in places]
            self._tell((frames.GAPS, tier, pool, [edges[place] for place in places], new, seen.sum - told.sum))
            told.counts[:], told.sum = seen.counts, seen.sum
