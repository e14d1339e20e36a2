"""All errors of a policy file, reported together. Their texts are in shape.py and checks.py, which find them.

PolicyErrors            raised by `load`; holds every error that was found
  └ PolicyError         one of them: `file:line: field.path: what is wrong, what would be right`
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

Path = tuple[str | int, ...]
MAX_LINES = 10
"""At most this many errors of a file are written."""


@dataclass(frozen=True, slots=True)
class PolicyError:
    """One error or warning. `line` counts from 1; 0 without a file."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.path, self.message) if part)


class PolicyErrors(Exception):
    """A policy that cannot be used, with all reasons."""

    def __init__(self, errors: Sequence[PolicyError]) -> None:
        super().__init__("\n".join(shown(errors)))
        self.errors = tuple(errors)


def shown(errors: Sequence[PolicyError]) -> list[str]:
    """The first errors as lines, and a last line with the number of the others. One mistake may cause thousands."""
    lines = [str(error) for error in errors[:MAX_LINES]]
    return lines if len(errors) <= MAX_LINES else [*lines, f"and {len(errors) - MAX_LINES} more errors"]


def write_path(path: Path) -> str:
    """`("pools", "short", "replicas", 0)` as `pools.short.replicas[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{plain(part)}" if text else plain(part)
    return text


def plain(text: str, most: int = 80) -> str:
    """A value or name on one line, truncated to `most` characters. It is quoted if it is empty, has spaces or cannot be
    printed.
    """
    if len(text) > most:
        text = text[:most] + "…"
    return text if text.isprintable() and text and " " not in text else repr(text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint: `did you mean x?`, or all known names if none is similar."""
    names = sorted(known)
    return _near(name, names) or (f"there is {_listed(names)}" if names else "there is none")


def among(name: str, known: Iterable[str]) -> str:
    """A hint with the similar name and all names: `did you mean x? Known: w, x, y`."""
    names = list(known)
    near, listed = _near(name, sorted(names)), ", ".join(names)
    return f"{near} Known: {listed}" if near else f"known: {listed}"


def _near(name: str, names: list[str]) -> str:
    """`did you mean x?`; empty if none is similar. `names` are sorted, so that the result is always the same."""
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {plain(near[0])}?" if near else ""


def _listed(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(plain, names[:most])) + more
