"""Converts values of the core to plain data (numbers, strings, lists, objects) that names its types, and back.

    1, "a", true, null, 0.5           as they are; the JSON library must print floats so that they are read back exactly
    {"float": "inf"}                  a float that JSON does not have
    {"AttemptOutcome": "complete"}    a member of an enum
    {"AttemptResult": ["...", 270]}   a dataclass that is made for every request (not frozen): its fields in their order
    {"Sample": {"healthy": true}}     a frozen dataclass: its fields by name, for people
    {"Tier": "1/premium"}             a reference: its name or number stands for it
    [1, 2]                            a tuple
    {"map": {"a": 1}}                 a mapping

Types are taken from values, not from annotations, because a compiled core keeps only some annotations. Secrets are left
out: fields with `repr=False`, and the API keys of a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from math import isfinite
from operator import attrgetter
from types import NoneType
from typing import Final

from gateway.core import commands, policy, pool_spec, request, results, sample, slo

Code = Callable[[object], object]

WITHHELD: Final[dict[tuple[str, str], object]] = {("Policy", "keys"): {}}
"""Fields that are not written although they have `repr=True`, with the values that they get when they are read."""
PLAIN: Final = frozenset({NoneType, bool, int, str})
NO_NUMBERS: Final = ("inf", "-inf", "nan")

_TYPES = [
    value
    for module in (policy, pool_spec, slo, request, results, sample, commands)
    for value in vars(module).values()
    if isinstance(value, type)
]
ENUMS: Final[dict[str, type[StrEnum]]] = {
    kind.__name__: kind for kind in _TYPES if issubclass(kind, StrEnum) and kind is not StrEnum
}
RECORDS: Final[dict[str, type]] = {kind.__name__: kind for kind in _TYPES if is_dataclass(kind)}


class Unreadable(ValueError):
    """Raised for plain data that cannot be read as a value of the core."""


def brief(data: object) -> str:
    """The beginning of unreadable data, for error texts."""
    text = repr(data)
    return text if len(text) <= 200 else f"{text[:200]}..."


def shown(kind: type) -> list[Field[object]]:
    """The fields of a dataclass that are written."""
    name = kind.__name__
    return [field for field in fields(kind) if field.init and field.repr and (name, field.name) not in WITHHELD]


def names_of(kind: type) -> list[str]:
    """Names of the fields that are written."""
    return [field.name for field in shown(kind)]


def is_frozen(kind: type) -> bool:
    """Whether the fields of this dataclass are written by name."""
    return bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


class Writer:
    """Writes values. For a value of a type in `references`, the function given there writes it."""

    def __init__(self, references: Mapping[type, Code]) -> None:
        self._codes: dict[type, Code] = {float: _number, tuple: self._items, list: self._items, dict: self._mapping}
        for enum in ENUMS.values():
            self._codes[enum] = members(enum).__getitem__
        for record in RECORDS.values():
            self._codes[record] = self.whole(record)
        self._codes.update(references)

    def value(self, value: object) -> object:
        """Convert any value to plain data. Raises TypeError for a type that cannot be written."""
        kind = type(value)
        if kind in PLAIN:
            return value
        code = self._codes.get(kind)
        if code is None:
            raise TypeError(f"there is no way to write a {kind.__name__}")
        return code(value)

    def whole(self, kind: type) -> Code:
        """A function that writes a dataclass in full, even if its type is in `references`."""
        name, frozen, names = kind.__name__, is_frozen(kind), names_of(kind)
        get = _getter(names)

        def write(value: object) -> object:
            row: list[object] = list(get(value))
            for index, item in enumerate(row):
                if type(item) not in PLAIN and not (isinstance(item, float) and isfinite(item)):
                    row[index] = self.value(item)
            return {name: dict(zip(names, row, strict=True)) if frozen else row}

        return write

    def _items(self, value: object) -> object:
        assert isinstance(value, tuple | list)
        return [self.value(item) for item in value]

    def _mapping(self, value: object) -> object:
        assert isinstance(value, dict)
        return {"map": {name: self.value(item) for name, item in value.items()}}


class Reader:
    """Reads values. `fields`: by type, the names of the fields that are written as a list. `references`: by type,
    functions that resolve references.
    """

    def __init__(self, fields: Mapping[str, Sequence[str]], references: Mapping[str, Code]) -> None:
        self._fields = fields
        self._references = references

    def value(self, data: object) -> object:
        """Convert plain data to a value. Raises `Unreadable` if that is impossible."""
        if isinstance(data, list):
            return tuple([self.value(item) for item in data])
        if not isinstance(data, dict):
            return data
        if len(data) == 1:
            for name, inner in data.items():
                return self._tagged(name, inner)
        raise Unreadable(f"{brief(data)} does not name its type")

    def _tagged(self, name: str, data: object) -> object:
        if name == "float" and data in NO_NUMBERS:
            return float(str(data))
        if name == "map" and isinstance(data, dict):
            return {key: self.value(item) for key, item in data.items()}
        if name in ENUMS:
            try:
                return ENUMS[name](str(data))
            except ValueError:
                raise Unreadable(f"{data!r} is not a member of {name}") from None
        if name in RECORDS and isinstance(data, dict):
            return self._record(name, data)
        if name in RECORDS and isinstance(data, list):
            named = self._fields.get(name, ())
            if len(named) != len(data):
                raise Unreadable(f"{brief(data)} is not a {name}: that is a list of {', '.join(named)}")
            return self._record(name, dict(zip(named, data, strict=True)))
        if name in self._references:
            return self._references[name](data)
        raise Unreadable(f"{brief(data)} cannot be read as {name}")

    def _record(self, name: str, data: Mapping[str, object]) -> object:
        """Make a value from its fields. In data of older versions, missing fields get their defaults."""
        known = shown(RECORDS[name])
        needed = {field.name for field in known if field.default is MISSING and field.default_factory is MISSING}
        unknown, missing = data.keys() - {field.name for field in known}, needed - data.keys()
        if unknown or missing:
            what = "are unknown here" if unknown else "are missing"
            raise Unreadable(f"fields of {name} {what}: {', '.join(sorted(unknown or missing))}")
        values = {key: self.value(item) for key, item in data.items()}
        values.update({field: value for (owner, field), value in WITHHELD.items() if owner == name})
        return RECORDS[name](**values)


def _getter(names: Sequence[str]) -> Callable[[object], Sequence[object]]:
    """A function that gets all fields as a tuple. `attrgetter` alone would return no tuple for a single field."""
    get: Callable[[object], Sequence[object]] = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (getattr(value, names[0]),)


def members(enum: type[StrEnum]) -> dict[object, object]:
    """The plain data for each member of an enum."""
    return {member: {enum.__name__: member.value} for member in enum}


def _number(value: object) -> object:
    assert isinstance(value, float)
    return value if isfinite(value) else {"float": str(value)}
