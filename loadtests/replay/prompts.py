"""Prompts of a wanted length, from plain words of one token each. A seed always gives the same prompts; prefixes are
shared as the arrivals ask.

Every word has three letters and a space before it. That is one token in the common byte-pair vocabularies, and four
bytes, which is one token of the emulated replicas. The tokens that a chat template adds are learned from the target
(`Sizes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gateway.sim.workload.arrivals import BLOCK_TOKENS

WORDS = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two"
    " way who boy did its let put say she too use dad mom big end far few got lot own run set top try ask air art bad"
    " bag bed bit box bus buy car cat cup cut dog dry ear eat egg eye fan fat fit fly fun gas god gun guy hat hit hot"
    " ice job joy key kid law lay leg lie lip low map may mix mud net nor oil pay pen pet pie pop pot raw red rich row"
    " sad sea sit six sky son sun tax tea ten tie tip war wet why win yes yet"
)
_VOCABULARY = tuple(word for word in WORDS.split() if len(word) == 3)
_BOOK_WORDS = 1 << 15
_HEAD_WORDS = 6
"""Words at the beginning of a prompt that encode its number: enough for all requests of any test."""
_BYTES = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """The target's token count of a prompt of words: `template + per_word * words`."""

    template: float = 7.0
    per_word: float = 1.0

    def words(self, tokens: int) -> int:
        """Words for a prompt of this many tokens; at least one."""
        return max(1, round((tokens - self.template) / self.per_word))

    @property
    def block_words(self) -> int:
        """Words in a block of a prefix."""
        return round(BLOCK_TOKENS / self.per_word)


class Prompts:
    """Makes prompts; one seed and number always give the same words."""

    def __init__(self, seed: int, sizes: Sizes | None = None) -> None:
        self.sizes = sizes or Sizes()
        self._seed = seed
        words = Random(f"{seed} book").choices(_VOCABULARY, k=_BOOK_WORDS)
        self._book = "".join(f" {word}" for word in words)

    def text(self, number: int, tokens: int, prefix: Sequence[int] = ()) -> str:
        """The prompt of request `number`, of this many tokens. Blocks of 512 tokens with the same hash in `prefix` have
        the same words.
        """
        words = self.sizes.words(tokens)
        if not prefix:
            return self._passage(f"{self._seed} {number}", words)[1:]
        parts, left, most = [], words, self.sizes.block_words
        for block in prefix:
            if left <= 0:
                break
            parts.append(self._passage(f"{self._seed} block {block}", min(left, most)))
            left -= most
        if left > 0:
            parts.append(self._passage(f"{self._seed} {number}", left))
        return "".join(parts)[1:]

    def _passage(self, of: str, words: int) -> str:
        """This many words: a unique beginning, then a piece of the book."""
        draw = Random(of)
        head = "".join(f" {word}" for word in draw.choices(_VOCABULARY, k=min(words, _HEAD_WORDS)))
        start = draw.randrange(_BOOK_WORDS) * _BYTES
        wanted = (words - _HEAD_WORDS) * _BYTES
        if wanted <= 0:
            return head
        piece = self._book[start : start + wanted]
        while len(piece) < wanted:
            piece += self._book[: wanted - len(piece)]
        return head + piece


def fitted(probes: Sequence[tuple[int, int]]) -> Sizes:
    """The target's way to count, from (words, counted tokens) of two prompts of different length. Raises ValueError if
    the counts are impossible.
    """
    (words, tokens), (more_words, more_tokens) = probes
    per_word = (more_tokens - tokens) / (more_words - words)
    if not 0.2 <= per_word <= 5.0:
        raise ValueError(f"{more_words - words} more words give {more_tokens - tokens} more tokens")
    return Sizes(tokens - per_word * words, per_word)
