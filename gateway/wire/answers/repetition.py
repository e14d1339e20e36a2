"""Detects that a growing text repeats itself without end.

A text repeats itself if its end consists of the same piece many times in a row. The piece may be a token, a phrase or a
paragraph. The piece must repeat exactly: a list that counts up, or a table whose cells differ, is no repetition.

After every `STEP` characters, the detector checks a window of limited size. It searches for earlier occurrences of the
last `ANCHOR` characters. The distance to an occurrence is a possible length of the piece. Search and comparison are
single string operations, so a check takes at most some ten microseconds.
"""

from __future__ import annotations

from typing import Final

STEP: Final = 64
ANCHOR: Final = 16
TRIES: Final = 4
"""Number of distances that are tried at each check. Usually the nearest is right, unless the piece has repetitions
within itself.
"""
PLAIN_FACTOR: Final = 4
"""Plain pieces must fill this many times as many characters: rules, blanks, dot leaders, zeros and padding look like
repetition.
"""
PLAIN_BELOW: Final = 3
"""A piece with fewer different letters and digits than this is plain."""


class RepetitionDetector:
    """Detects repetition in a text that comes piece by piece. Only the end of the text is kept."""

    __slots__ = ("_characters", "_due", "_fresh", "_repeats", "_text", "_window", "found")

    def __init__(self, characters: int, repeats: int) -> None:
        """A repetition has at least `characters` characters, made of one piece that repeats at least `repeats` times.

        The piece may be as long as `characters`, so `repeats` x `characters` characters are kept.
        """
        self._characters = characters
        self._repeats = repeats
        self._window = max(PLAIN_FACTOR, repeats) * characters + STEP
        self._text = ""
        self._fresh: list[str] = []
        self._due = STEP
        """Number of characters until the next check."""
        self.found = False
        """Whether a repetition was found. Once True, it stays True."""

    def add(self, text: str) -> None:
        """Add the next piece of text."""
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
        """Whether the text ends with a piece that repeats often enough."""
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
        """Whether the text ends with a piece of `size` characters that repeats often enough and for long enough."""
        text = self._text
        if size > self._characters:
            return False
        span = max(self._characters, self._repeats * size)
        if not _has_period(text, size, span):
            return False
        different = len({char for char in text[-size:] if char.isalnum()})
        return different >= PLAIN_BELOW or _has_period(text, size, PLAIN_FACTOR * self._characters)


def _has_period(text: str, size: int, span: int) -> bool:
    """Whether each of the last `span` characters equals the character `size` before it."""
    return len(text) >= span and text[len(text) - span : len(text) - size] == text[len(text) - span + size :]
