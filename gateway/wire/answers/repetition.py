"""Detects that a growing text has begun to repeat itself without end.

A text repeats itself if its end is one piece over and over, of any length: a token, a phrase, a paragraph. The piece
must repeat exactly: a list that counts up, or a table whose cells differ, is no repetition.

The detector looks every `STEP` characters, in a window of bounded size. It searches for the last `ANCHOR` characters
further back, which gives the distance at which the text may repeat. The search and the check are single operations on
strings, so that a look costs some ten microseconds at most.
"""

from __future__ import annotations

from typing import Final

STEP: Final = 64
ANCHOR: Final = 16
TRIES: Final = 4
"""Distances that are checked at each look: the nearest one is usually right, unless the piece repeats within itself."""
PLAIN_FACTOR: Final = 4
"""Rules, blanks, dot leaders, zeros and runs of padding look like repetition, so their pieces must repeat for longer.
"""
PLAIN_BELOW: Final = 3
"""A piece with fewer different letters and digits than this belongs to that kind."""


class RepetitionDetector:
    """Gets a text piece by piece, and keeps its end."""

    __slots__ = ("_characters", "_due", "_fresh", "_repeats", "_text", "_window", "found")

    def __init__(self, characters: int, repeats: int) -> None:
        """Detects at least `characters` that consist of one piece, repeated at least `repeats` times.

        The piece may be as long as `characters`, so `repeats` times that many are kept.
        """
        self._characters = characters
        self._repeats = repeats
        self._window = max(PLAIN_FACTOR, repeats) * characters + STEP
        self._text = ""
        self._fresh: list[str] = []
        self._due = STEP
        """Characters until the next look."""
        self.found = False
        """Whether a repetition was found; it stays true."""

    def add(self, text: str) -> None:
        """More of it."""
        if text:
            self._fresh.append(text)
            self._due -= len(text)
        if self._due > 0:
            return
        self._due = STEP
        self._text = (self._text + "".join(self._fresh))[-self._window :]
        self._fresh.clear()
        self.found = self.found or self._repeats_itself()

    def _repeats_itself(self) -> bool:
        """Whether the text ends in one piece, repeated as often as the rules ask."""
        text = self._text
        start = len(text) - ANCHOR
        anchor, place = text[start:], start
        for _ in range(TRIES):
            place = text.rfind(anchor, 0, place + ANCHOR - 1)
            if place < 0:
                return False
            size = start - place
            if self._goes_on(size):
                return True
        return False

    def _goes_on(self, size: int) -> bool:
        """Whether the text ends with a piece of `size` characters, often enough and for long enough."""
        text = self._text
        if size > self._characters:
            return False
        span = max(self._characters, self._repeats * size)
        if not _has_period(text, size, span):
            return False
        different = len({char for char in text[-size:] if char.isalnum()})
        return different >= PLAIN_BELOW or _has_period(text, size, PLAIN_FACTOR * self._characters)


def _has_period(text: str, size: int, span: int) -> bool:
    """Whether each of the last `span` characters equals the one `size` before it."""
    return len(text) >= span and text[len(text) - span : len(text) - size] == text[len(text) - span + size :]
