"""The progress of a running test: counts, and percentiles of the last ten seconds."""

from __future__ import annotations

import re
from io import StringIO

from rich.console import Console

from gateway.sim.workload.arrivals import Arrival
from loadtests.commands.progress import PLAIN_EVERY, RECENT, Progress
from loadtests.replay.play import Kept, Now
from loadtests.replay.request import Outcome, Request


def ended(at: float, ttft_s: float | None, outcome: Outcome = Outcome.FINISHED) -> Request:
    request = Request(0, Arrival(at, "t", "t-1", "m", 40, 5), sent_s=at + 0.003)
    request.first_s = None if ttft_s is None else at + ttft_s
    request.ended_s, request.outcome = at + 2.0, outcome
    return request


def shown(request: Request, count: int, lines: int, before: str = "") -> tuple[str, Kept]:
    """The last progress line, after this many calls with this many equal requests before each."""
    out, kept = StringIO(), Kept()
    progress = Progress(kept, Console(file=out, width=400), 30.0)
    for call in range(PLAIN_EVERY * lines):
        if before and call < RECENT:
            progress.ended(ended(0.0, float(before)))
        for _ in range(count):
            progress.ended(request)
        progress.show(Now(call / 2, 900, 800, 100, 10, 0))
    return out.getvalue().splitlines()[-1], kept


def seconds(line: str) -> list[float]:
    """p50 and p99 of the line, and its p99 of lateness."""
    found = re.findall(r"p(?:50|99) ([\d.]+) (m?)s", line)
    return [float(value) / (1000 if milli else 1) for value, milli in found]


def test_progress_line_shows_elapsed_time_and_current_figures() -> None:
    out = StringIO()
    progress = Progress(kept := Kept(), Console(file=out, width=400), 30.0)
    for n in range(1, 101):
        progress.ended(ended(0.0, n / 100))
    progress.ended(ended(0.0, None, Outcome.SHED))
    progress.ended(ended(0.0, None, Outcome.QUOTA))
    progress.ended(ended(0.0, None, Outcome.TIMEOUT))
    for _ in range(PLAIN_EVERY):
        progress.show(Now(9.6, 1900, 103, 17, 10, 0))
    (line,) = out.getvalue().splitlines()
    assert len(kept.requests) == 103
    assert line.startswith("10 of 30 s: 1,900 sent, 17 under way, 100 answered, 2 shed, 1 failed; TTFT p50 ")
    p50, p99, late = seconds(line)
    assert (abs(p50 / 0.5 - 1), abs(p99 / 0.99 - 1), abs(late / 0.003 - 1)) < (0.05, 0.05, 0.05)


def test_progress_after_the_last_request_names_the_awaited_answers() -> None:
    out = StringIO()
    progress = Progress(Kept(), Console(file=out, width=400), 30.0)
    for _ in range(PLAIN_EVERY):
        progress.show(Now(33.2, 1900, 1895, 3, 5, 0, all_sent=True))  # two more will try again
    assert out.getvalue().startswith("33 s: all 1,900 sent, waiting for 5, 0 answered")


def test_progress_before_an_aligned_beginning_says_when_it_begins() -> None:
    out = StringIO()
    progress = Progress(Kept(), Console(file=out, width=400), 30.0)
    for _ in range(PLAIN_EVERY):
        progress.show(Now(-42.4, 0, 0, 0, 0, 0))
    assert out.getvalue() == "begins in 42 s\n"


def test_progress_percentiles_cover_the_last_ten_seconds() -> None:
    line, _ = shown(ended(0.0, 0.1), 1, 3, before="5.0")
    assert max(seconds(line)) < 0.11
    line, _ = shown(ended(0.0, 0.1), 1, 1, before="5.0")
    assert seconds(line)[1] > 4.5


def test_progress_of_whole_answers_shows_end_to_end_latency() -> None:
    line, _ = shown(ended(0.0, None), 1, 1)
    assert "e2e p50 2" in line
