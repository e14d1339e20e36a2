"""Values of the core as plain data (numbers, strings, lists, objects) and back, by the types of their fields.

A dataclass that is made for every request (one that is not frozen) is a list of its fields in their order, which is
short; a frozen one is an object by field name, which people can read. A member of a union is `[type, value]`. None is
null whatever the type. JSON has no infinity, so floats that are not finite are the strings "inf", "-inf" and "nan";
the others are left to the JSON library, which has to print what reads back as the same bits (all of Python's do).

Left out is what nobody is to see: fields with `repr=False`, and the keys of a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from math import inf, isfinite
from types import NoneType, UnionType
from typing import NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from gateway.core.rules import Policy

Code = Callable[[object], object]

WITHHELD: dict[tuple[type, str], object] = {(Policy, "keys"): {}}
"""Fields that are not written though they are shown elsewhere, and what they are when read."""
AS_IT_IS = (bool, int, str)


class Unreadable(ValueError):
    """Plain data that is not what it should be."""


class Coder(NamedTuple):
    """How values of one type are written and read; None where they are plain already. Neither is given a None."""

    encode: Code | None
    decode: Code | None


class Coders:
    """How each type is written.

    A type in `references` is written as what stands for it. `names` are the fields that lists had where the data was
    written, by type; those of today where it does not say.
    """

    def __init__(
        self, references: Mapping[type, Coder] | None = None, names: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._made: dict[object, Coder] = {float: Coder(_finite, _any_float)}
        for kind, coder in (references or {}).items():
            self._made[kind] = coder
        self._names = names or {}
        self.lists: dict[str, tuple[str, ...]] = {}
        """The fields of every type that is written as a list, by type."""

    def of(self, hint: object) -> Coder:
        """How a value of this type is written. Raises TypeError if it cannot be."""
        coder = self._made.get(hint)
        if coder is None:
            coder = self._made[hint] = self._make(hint)
        return coder

    def whole(self, kind: type) -> Coder:
        """How a dataclass is written in full, though elsewhere a reference may stand for it."""
        hints = get_type_hints(kind)
        shown = [field for field in fields(kind) if field.init and field.repr and (kind, field.name) not in WITHHELD]
        coders = {field.name: self.of(hints[field.name]) for field in shown}
        write, read = _writer(kind, hints, coders), _reader_of(kind, shown, coders)
        if _is_frozen(kind):
            return Coder(write, read)
        self.lists[kind.__name__] = tuple(coders)
        written = self._names.get(kind.__name__, tuple(coders))
        return Coder(write, lambda data: read(_named(written, data, kind.__name__)))

    def _make(self, hint: object) -> Coder:
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            return Coder(None, _member(hint))
        if hint in AS_IT_IS:
            return Coder(None, None)
        if isinstance(hint, type) and is_dataclass(hint):
            return self.whole(hint)
        if _some(hint) is not hint:
            return self.of(_some(hint))
        origin, inner = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return self._union([part for part in inner if part is not NoneType])
        if origin is list or (origin is tuple and inner[1:] == (...,)):
            return _sequence(self.of(inner[0]), origin, optional=_some(inner[0]) is not inner[0])
        if origin is tuple:
            return _tuple([self.of(part) for part in inner])
        if origin in (dict, Mapping) and inner[0] is str:
            return _mapping(self.of(inner[1]))
        raise TypeError(f"there is no way to write {hint}")

    def _union(self, parts: list[object]) -> Coder:
        if not all(isinstance(part, type) and is_dataclass(part) for part in parts):
            raise TypeError(f"there is no way to write one of {parts}")
        kinds = [cast(type, part) for part in parts]
        by_type = {kind: (kind.__name__, cast(Code, self.of(kind).encode)) for kind in kinds}
        by_name = {kind.__name__: _decoder(self.of(kind)) for kind in kinds}

        def encode(value: object) -> object:
            name, code = by_type[type(value)]
            return name, code(value)

        def decode(data: object) -> object:
            match data:
                case [str(name), value] if name in by_name:
                    return by_name[name](value)
            raise Unreadable(f"{data!r} is none of {', '.join(by_name)}")

        return Coder(encode, decode)


def _finite(value: object) -> object:
    return value if isfinite(cast(float, value)) else str(value)


def _any_float(data: object) -> object:
    if isinstance(data, str) and data in ("inf", "-inf", "nan"):
        return float(data)
    if isinstance(data, int | float):
        return data
    raise Unreadable(f"{data!r} is not a number")


def _member(kind: type[StrEnum]) -> Code:
    def read(data: object) -> object:
        try:
            return kind(cast(str, data))
        except ValueError:
            raise Unreadable(f"{data!r} is not a {kind.__name__}") from None

    return read


def _writer(kind: type, hints: Mapping[str, object], coders: Mapping[str, Coder]) -> Code:
    """Writes the fields of a dataclass, the frozen ones by name.

    Compiled, as `dataclasses` compiles __init__: a journal writes five calls for every request, and a loop over the
    fields takes twice as long.
    """
    known: dict[str, object] = {"inf": inf}
    parts = []
    for name, coder in coders.items():
        part = f"v.{name}"
        if _some(hints[name]) is float:
            part = f"x if (x := v.{name}) is None or -inf < x < inf else str(x)"
        elif coder.encode is not None:
            known[f"write_{name}"] = coder.encode
            part = f"None if (x := v.{name}) is None else write_{name}(x)"
        parts.append(f"{name!r}: {part}" if _is_frozen(kind) else part)
    body = f"{{{', '.join(parts)}}}" if _is_frozen(kind) else f"[{', '.join(parts)}]"
    return cast(Code, eval(f"lambda v: {body}", known))


def _is_frozen(kind: type) -> bool:
    return bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _reader_of(kind: type, shown: Sequence[Field[object]], coders: Mapping[str, Coder]) -> Code:
    """Reads an object by field name. What is missing takes its default, for data of an older version."""
    decoders = {name: _decoder(coder) for name, coder in coders.items()}
    needed = {field.name for field in shown if field.default is MISSING and field.default_factory is MISSING}
    withheld = {name: value for (owner, name), value in WITHHELD.items() if owner is kind}

    def read(data: object) -> object:
        if not isinstance(data, dict):
            raise Unreadable(f"{data!r} is not a {kind.__name__}")
        unknown, missing = data.keys() - decoders.keys(), needed - data.keys()
        if unknown or missing:
            what = "are unknown here" if unknown else "are missing"
            raise Unreadable(f"fields of {kind.__name__} {what}: {', '.join(sorted(unknown or missing))}")
        return kind(**withheld, **{name: decoders[name](value) for name, value in data.items()})

    return read


def _some(hint: object) -> object:
    """The type without its None."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    return parts[0] if get_origin(hint) in (Union, UnionType) and len(parts) == 1 else hint


def _named(names: Sequence[str], data: object, of: str) -> dict[str, object]:
    values = _list(data, of)
    if len(values) != len(names):
        raise Unreadable(f"{data!r} is not a {of}: that is a list of {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def _list(data: object, of: str) -> list[object]:
    if not isinstance(data, list):
        raise Unreadable(f"{data!r} is not a list of {of}")
    return data


def _encoder(coder: Coder) -> Code:
    code = coder.encode
    return (lambda value: value) if code is None else lambda value: None if value is None else code(value)


def _decoder(coder: Coder) -> Code:
    code = coder.decode
    return (lambda data: data) if code is None else lambda data: None if data is None else code(data)


def _sequence(item: Coder, make: Callable[[list[object]], object], optional: bool) -> Coder:
    encode, decode = _encoder(item) if optional or item.encode is None else item.encode, _decoder(item)
    return Coder(
        lambda value: [encode(one) for one in cast(Sequence[object], value)],
        lambda data: make([decode(one) for one in _list(data, "values")]),
    )


def _tuple(items: Sequence[Coder]) -> Coder:
    encoders, decoders = [_encoder(item) for item in items], [_decoder(item) for item in items]
    return Coder(
        lambda value: [code(one) for code, one in zip(encoders, cast(Sequence[object], value), strict=True)],
        lambda data: tuple(code(one) for code, one in zip(decoders, _list(data, "values"), strict=False)),
    )


def _mapping(item: Coder) -> Coder:
    encode, decode = _encoder(item), _decoder(item)

    def read(data: object) -> object:
        if not isinstance(data, dict):
            raise Unreadable(f"{data!r} is not an object")
        return {name: decode(one) for name, one in data.items()}

    return Coder(lambda value: {name: encode(one) for name, one in cast(Mapping[str, object], value).items()}, read)
