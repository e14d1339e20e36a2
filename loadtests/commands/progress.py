"""Progress of a running load test, and percentiles of its last ten seconds."""

from __future__ import annotations

from collections import deque

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gateway.core.estimators.histograms import LogHistogram, log_edges, quantile
from loadtests.replay.play import Now, Recorder
from loadtests.replay.request import Outcome, Request
from loadtests.report.words import time

EDGES = log_edges(1e-4, 1000.0, 0.02)
RECENT = 20
"""Number of calls of `show`, one every half second, that the percentiles cover."""
PLAIN_EVERY = 20
"""Number of calls of `show` between two lines of progress if there is no terminal."""


class Progress:
    """A recorder that passes its calls on, and shows the figures."""

    def __init__(self, to: Recorder, out: Console, planned_s: float | None) -> None:
        self._to = to
        self._out = out
        self._planned_s = planned_s
        self._live = Live(console=out, auto_refresh=False, transient=True) if out.is_terminal else None
        self._first, self._whole, self._late = (LogHistogram(EDGES) for _ in range(3))
        self._before = deque([list(self._first.counts)], maxlen=RECENT)
        self._finished = self._shed = self._failed = 0
        self._shown = 0

    def gap(self, request: Request, gap_s: float, count: int) -> None:
        """Pieces of content arrived."""
        self._to.gap(request, gap_s, count)

    def ended(self, request: Request) -> None:
        """A request is over."""
        self._to.ended(request)
        self._late.add(max(0.0, request.late_s))
        if request.outcome is Outcome.FINISHED:
            self._finished += 1
            if request.first_s is not None:
                self._first.add(max(0.0, request.first_s - request.arrival.at))
            self._whole.add(max(0.0, request.ended_s - request.arrival.at))
        elif request.outcome in (Outcome.SHED, Outcome.QUOTA):
            self._shed += 1
        else:
            self._failed += 1

    def show(self, now: Now) -> None:
        """Show the progress; called every half second."""
        name, seen = ("TTFT", self._first) if any(self._first.counts) else ("e2e", self._whole)
        lately = [max(0.0, after - was) for after, was in zip(seen.counts, self._before[0], strict=True)]
        self._before.append(list(seen.counts))
        p50, p99 = (quantile(EDGES, lately, q) for q in (0.5, 0.99))
        planned = f" of {self._planned_s:g}" if self._planned_s is not None else ""
        far = f"{now.at_s:.0f}{planned} s: {now.sent:,} sent, {now.under_way:,} under way"
        if now.all_sent:
            far = f"{now.at_s:.0f} s: all {now.sent:,} sent, waiting for {now.sent - now.ended:,}"
        line = (
            f"{far}, {self._finished:,} answered, {self._shed:,} shed, {self._failed:,} failed; "
            f"{name} p50 {time(p50)}, p99 {time(p99)}; late p99 {time(self._late.quantile(0.99))}"
        )
        if now.at_s < 0.0:
            line = f"begins in {-now.at_s:.0f} s"
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        elif self._shown % PLAIN_EVERY == PLAIN_EVERY - 1:
            self._out.print(line)
        self._shown += 1

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
