"""The fields of a policy by path, as text, and the differences between two policies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator

from gateway.policy.schema import PolicyFile
from gateway.policy.sections import units, values
from gateway.policy.sections.clients import KeySection
from gateway.policy.sections.pools import ReplicaSection
from gateway.policy.sections.section import Section

Outline = Mapping[tuple[str, ...], str]

KEY_DIGITS = 8
NOT_SET = "not set"
_SALT = os.urandom(16)
"""Makes digests of secrets worthless outside this process."""


def outline_of(file: PolicyFile) -> Outline:
    """Every value of a policy file, defaults included, as it may be written, by its path. Secrets are only told apart.

    A missing value has no path. Replicas go by their names, and keys by the first digits of their hashes.
    """
    return dict(_fields((), file))


def changes(old: Outline, new: Outline) -> list[str]:
    """The differences between two outlines, one line each: `tiers.gold.slo.ttft.p99: 1s -> 800ms`.

    A model, pool, replica, tier or key that only one of them has is one line: `tiers.gold: added`.
    """
    had, has = _named(old), _named(new)
    lines: dict[str, None] = {}  # without repetitions, in order
    for path in dict.fromkeys((*old, *new)):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        whole = next((part for part in _names(path) if (part in had) != (part in has)), None)
        if whole is None:
            lines[f"{'.'.join(path)}: {before or NOT_SET} -> {after or NOT_SET}"] = None
        else:
            lines[f"{'.'.join(whole)}: {'added' if whole in has else 'removed'}"] = None
    return list(lines)


def _names(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of the named parts that a field belongs to, such as a pool and a replica of it; the outermost first."""
    if path[0] in ("models", "pools", "tiers", "keys"):
        yield path[:2]
        if path[2:3] == ("replicas",):
            yield path[:4]


def _named(outline: Outline) -> set[tuple[str, ...]]:
    return {part for path in outline for part in _names(path)}


def _fields(path: tuple[str, ...], section: Section) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, write in _writers(type(section)).items():
        value, about = getattr(section, name), type(section).model_fields[name]
        match about.json_schema_extra:
            case {"default": str(written)} if value == about.default:
                yield (*path, name), written
            case _:
                yield from _values((*path, name), value, write)


def _values(path: tuple[str, ...], value: Any, write: Callable[[Any], str]) -> Iterator[tuple[tuple[str, ...], str]]:
    match value:
        case None:
            return
        case Section():
            yield from _fields(path, value)
        case dict():
            for name, item in value.items():
                yield from _values((*path, name), item, write)
        case list() if value and isinstance(value[0], Section):
            for item in value:
                yield from _fields((*path, _name_of(item)), item)
        case list():
            yield path, ", ".join(map(write, value)) or "none"
        case _:
            yield path, write(value)


def _name_of(section: Section) -> str:
    match section:
        case ReplicaSection():
            return section.name or section.url.removeprefix("http://")
        case KeySection():
            return f"{section.tenant}/{section.sha256[:KEY_DIGITS]}"
        case _:
            raise TypeError(f"{type(section).__name__} has no name")


@cache
def _writers(section: type[Section]) -> dict[str, Callable[[Any], str]]:
    """For each field of a section, the function that writes its value."""
    hints = get_type_hints(section, include_extras=True)
    return {name: _writer(hints[name]) for name in section.model_fields}


_WRITERS: dict[Any, Callable[[Any], str]] = {
    units.seconds: units.write_seconds,
    units.deadline: units.write_seconds,
    units.span: lambda span_s: units.write_seconds(span_s) if span_s else "none",
    units.per_minute: lambda rate: f"{rate:g}/min",
    units.allowances: units.write_allowances,
    units.share: units.write_share,
    units.byte_count: units.write_size,
    values.read_sha256: lambda digest: digest[:KEY_DIGITS],
}


def _writer(hint: Any) -> Callable[[Any], str]:
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        for each in metadata:
            if isinstance(each, BeforeValidator):
                return _WRITERS.get(each.func, _secret_or_text(hint))
        return _writer(inner)
    for inner in reversed(get_args(hint)):  # of a mapping, the values
        if get_origin(inner) is Annotated or get_args(inner):
            return _writer(inner)
    return _text


def _secret_or_text(hint: Any) -> Callable[[Any], str]:
    return _secret if hint == values.Secret else _text


def _secret(secret: str) -> str:
    digest = hashlib.blake2b(secret.encode(), key=_SALT, digest_size=3).hexdigest()
    return f"secret {digest}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
