"""Memory: learned numbers that outlive their process, as plain data: numbers, texts, lists and objects.

Fields are written by name. A version that has other fields reads those that it knows, and starts anew with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOTHING: Final[Mapping[str, object]] = {}


class Remembering:
    """An object whose `remembered` fields can be written, and read again by its successor."""

    __slots__ = ()

    def remembered(self) -> tuple[str, ...]:
        """Names of the fields. Each is a bool, an int, a float, a list or tuple of numbers or rows, or a `Remembering`.
        One that is None takes a float. One whose name ends with `_at` is a time.
        """
        raise NotImplementedError

    def memory(self) -> dict[str, object]:
        """The fields. Lists are the object's own, so they must be written before its next change."""
        found: dict[str, object] = {}
        for name in self.remembered():
            value: object = getattr(self, name)
            found[name.lstrip("_")] = value.memory() if isinstance(value, Remembering) else value
        return found

    def recall(self, memory: object, shift_s: float) -> None:
        """Take over a memory. A field that is missing there, or has another form, stays as it is. `shift_s` is added to
        times: the clock of the predecessor was another.
        """
        known = objects_in(memory)
        for name in self.remembered():
            mine: object = getattr(self, name)
            told = known.get(name.lstrip("_"))
            if isinstance(mine, Remembering):
                mine.recall(told, shift_s)
            elif name.endswith("_at") and isinstance(told, float):
                setattr(self, name, told + shift_s)
            else:
                setattr(self, name, _in_form_of(mine, told))


def _in_form_of(mine: object, told: object) -> object:
    """A copy of `told` in the form of `mine`; `mine` if it has another. An empty list takes equal rows of floats."""
    if isinstance(mine, list | tuple) and isinstance(told, list | tuple):
        rows = [list(item) if isinstance(item, list | tuple) else item for item in told]
        forms = [_form_of(item) for item in rows]
        if mine and forms != [_form_of(item) for item in mine]:
            return mine
        if not mine and (len({*forms}) > 1 or {float}.union(*forms) - {list, float}):
            return mine
        return tuple(rows) if isinstance(mine, tuple) else rows
    if isinstance(mine, bool):  # first: compiled code makes an int of what it takes for one
        return told if isinstance(told, bool) else mine
    if isinstance(mine, int):
        return told if type(told) is int else mine
    if mine is None or isinstance(mine, float):
        return float(told) if isinstance(told, int | float) else mine
    return mine


def _form_of(item: object) -> tuple[type, ...]:
    return (list, *map(type, item)) if isinstance(item, list) else (type(item),)


def objects_in(memory: object) -> Mapping[str, object]:
    """The fields of a part of a memory; empty if it has none."""
    return memory if isinstance(memory, dict) else NOTHING


def rows_in(memory: object) -> list[list[object]]:
    """The rows of a part of a memory; empty if it has none."""
    return [list(row) for row in memory if isinstance(row, list | tuple)] if isinstance(memory, list | tuple) else []
