"""The text of answers, in a file that only its owner may read. Reports hold no words of people."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from loadtests.replay.play import Recorder
from loadtests.replay.request import Request
from loadtests.replay.written import Written

ANSWERS = "answers.jsonl"


class KeptAnswers:
    """A recorder that passes its calls on, and writes a line for each answer with text."""

    def __init__(self, to: Recorder, folder: Path) -> None:
        self._to = to
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(folder / ANSWERS, flags, 0o600), "wb")

    def gap(self, request: Request, gap_s: float, count: int) -> None:
        """Pieces of content arrived."""
        self._to.gap(request, gap_s, count)

    def ended(self, request: Request) -> None:
        """A request is over."""
        self._to.ended(request)
        arrival = request.arrival
        turn = arrival.turn if isinstance(arrival, Written) else 1
        line = {"number": request.number, "turn": turn, "outcome": request.outcome.name.lower(), "text": request.said}
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Write the last lines."""
        self._file.close()
