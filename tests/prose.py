"""Rules of plain English that a program can check: openings and lengths of sentences.

Code, tables, formulas and pictures are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_WORDS = 30  # in a sentence; the style asks for 25
OPENINGS = re.compile(
    r"(What (?!would change it)|Of what|Of which|Of whom|Those that|Those who|Who |Whoever|Whatever"
    r"|Nothing that|Nobody that)",
)
ABBREVIATIONS = re.compile(r"(?:^|[\s(])(?:e\.g|i\.e|cf|vs|al|nr|[A-Z])\.$")

_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_LABEL = re.compile(r"^(?:[-*] |\d+\. |#+ |> )")
_END = re.compile(r"(?<=[.!?])[)\]\"']*\s+")


@dataclass(frozen=True, slots=True)
class Fault:
    """A sentence that breaks a rule: the line where its paragraph begins (from 1), the rule, and its text."""

    line: int
    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule}: {self.sentence}"


def _blank(match: re.Match[str]) -> str:
    """The same number of empty lines, so that later lines keep their numbers."""
    return "\n" * match[0].count("\n")


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Each paragraph, heading and list item, with its line; code, tables and indented formulas are left out."""
    begin, lines = 0, list[str]()
    for number, line in enumerate([*_FENCE.sub(_blank, text).split("\n"), ""], 1):
        bare = line.strip()
        apart = not bare or bare.startswith("|") or _LABEL.match(bare) or line.startswith("    ")
        if apart and lines:
            yield begin, " ".join(lines)
            lines = []
        if bare and not bare.startswith("|") and not (line.startswith("    ") and not _LABEL.match(bare)):
            if not lines:
                begin = number
            lines.append(bare)
            if bare.startswith("#"):
                yield begin, bare
                lines = []


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence of the prose, with the line its paragraph begins at. Code in the line counts as one word."""
    for line, block in blocks(text):
        plain = _LINK.sub(r"\1", _PICTURE.sub("", _CODE.sub("CODE", block)))
        plain = _LABEL.sub("", plain).replace("**", "").replace("*", "")
        held = ""
        for part in _END.split(plain):
            held = f"{held} {part}".strip()
            if ABBREVIATIONS.search(held):
                continue
            if held:
                yield line, held
            held = ""
        if held:
            yield line, held


def words(text: str) -> int:
    return sum(1 for word in text.split() if re.search(r"\w", word))


def faults(text: str) -> list[Fault]:
    """Every sentence of `text` that opens with a banned phrase and asks nothing, or has over `MAX_WORDS` words."""
    found = []
    for line, sentence in sentences(text):
        if OPENINGS.match(sentence) and not sentence.endswith("?"):
            found.append(Fault(line, "banned opening", sentence))
        if words(sentence) > MAX_WORDS:
            found.append(Fault(line, f"{words(sentence)} words", sentence))
    return found
