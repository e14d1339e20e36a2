"""Checks the shape of a document: its fields, types and ranges. Errors are plain sentences."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.policy.document import Document
from gateway.policy.errors import Path, PolicyErrors, did_you_mean, plain
from gateway.policy.sections.section import Section

File = TypeVar("File", bound=Section)

_KEY = "[key]"  # pydantic's mark for an error in the key of a mapping

# Values of these fields are never shown in an error.
_SECRET = frozenset({"sha256", "api_key", "cache_key", "url"})

_SENTENCES = {
    "int_type": "{value} is not a whole number",
    "float_type": "{value} is not a number",
    "bool_type": "{value} is neither true nor false",
    "string_type": "{value} is not a text",
    "finite_number": "{value} is not a finite number",
    "greater_than": "{value} is too small: it must be more than {gt:g}",
    "greater_than_equal": "{value} is too small: the minimum is {ge}",
    "less_than": "{value} is too large: it must be less than {lt:g}",
    "less_than_equal": "{value} is too large: the maximum is {le}",
    "string_too_short": "is empty: write at least one character",
}
_NO_TEXT = re.compile(r"-?\d+(\.\d+)?|true|false", re.ASCII)
_CONTAINERS = {"dict_type": "a mapping", "model_type": "a mapping", "list_type": "a list"}


def _is_another(document: Document, file: type[Section]) -> bool:
    """Whether a document declares another version or kind. If so, its other errors are not reported."""
    found = document.data if isinstance(document.data, Mapping) else {}
    errors = []
    for name in ("apiVersion", "kind"):
        (wanted,) = get_args(file.model_fields[name].annotation)
        if found.get(name, wanted) not in (wanted, None):
            said = _shown(document, (name,), found[name])
            errors.append(document.error((name,), f"{said} is not supported: write {name}: {wanted}"))
    if errors:
        document.errors = errors
    return bool(errors)


def checked(document: Document, file: type[File], check: Callable[[File | None], None] = lambda _: None) -> File:
    """The sections of a document, read as a file of the given kind. Raises PolicyErrors with all errors.

    `check`: adds further errors to the document. It gets None if the sections cannot be read.
    """
    found = None
    if document.data is None and not document.errors:
        (kind,) = get_args(file.model_fields["kind"].annotation)
        document.add((), f"is empty: write a {kind.lower()} that begins with apiVersion: tailgate/v1")
    elif document.data is not None and not _is_another(document, file):
        found = _shaped(document, file)
        check(found)
    if found is None or document.errors:
        raise PolicyErrors(sorted(set(document.errors), key=lambda error: (error.line, error.path)))
    return found


def _shaped(document: Document, file: type[File]) -> File | None:
    """Read the sections of a document. If they cannot be read, returns None, and the errors are in `document`."""
    try:
        return file.model_validate(document.data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            _add(document, file, detail)
        return None


def _add(document: Document, file: type[Section], detail: ErrorDetails) -> None:
    path = tuple(part for part in detail["loc"] if part != _KEY)
    if path[-1:] == ("url",) and isinstance(detail["input"], str) and path not in document.marks:
        path = path[:-1]  # the replica is written as just its URL
    match detail["type"]:
        case "missing" if path == ("apiVersion",):
            document.add(path, "is missing: write apiVersion: tailgate/v1")
        case "missing":
            document.add(path, f"is missing: {_description(file, path)}")
        case "extra_forbidden":
            fields = _section(file, path[:-1])
            known = fields.model_fields if fields else ()
            document.add(path, f"unknown field: {did_you_mean(str(path[-1]), known)}", at_key=True)
        case _:
            document.add(path, _sentence(document, file, path, detail), at_key=_KEY in detail["loc"])


def _sentence(document: Document, file: type[Section], path: Path, detail: ErrorDetails) -> str:
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    if found is None:
        return "is empty: give it a value or leave the field out"
    if kind in _CONTAINERS:
        wanted = f"is {_kind(found)}, must be {_CONTAINERS[kind]}"
        if kind == "list_type" or isinstance(found, list) or not path:
            return wanted
        name = "" if isinstance(path[-1], int) else f"{plain(path[-1])}: "
        return f"{wanted}, such as {name}{_example(document, file, path, found)}"
    if kind == "too_short":
        return f"is empty: {_description(file, path)}"
    if isinstance(found, Mapping | list) and kind != "value_error":
        return f"is {_kind(found)}, must be a single value"
    shown = plain(str(path[-1])) if _KEY in detail["loc"] else _shown(document, path, found)
    if kind in _SENTENCES:
        return _SENTENCES[kind].format(value=shown, **context)
    return str(context.get("error", detail["msg"])).replace("{value}", shown)


def _example(document: Document, file: type[Section], path: Path, found: object) -> str:
    """The mapping that was probably meant, where a single value was written."""
    section = _section(file, path)
    if section is None:
        return "{NAME: ...}"
    fields = section.model_fields
    needed = [name for name, field in fields.items() if field.is_required()] or _usual(section)
    names = needed or list(fields)
    if _SECRET.isdisjoint(fields):
        shown = _shown(document, path, found)
        given = [f"{name}: {shown}" for name in names if _takes(section, name, found)] or [
            f"{name}: [{shown}]" for name in names if _takes(section, name, [found])
        ]
        if len(given) >= max(1, len(needed)):
            return _mapping(given)
    return _mapping([f"{name}: ..." for name in names])


def _usual(section: type[BaseModel]) -> list[str]:
    """The usual fields of a section: those of its first alternative."""
    extra: Any = section.model_config.get("json_schema_extra") or {}
    alternatives = extra.get("oneOf") or extra.get("anyOf")
    return list(alternatives[0]["required"]) if alternatives else []


def _takes(section: type[BaseModel], name: str, value: object) -> bool:
    try:
        section.model_validate({name: value})
    except ValidationError as error:
        return all(detail["loc"][:1] != (name,) for detail in error.errors(include_url=False))
    return True


def _mapping(fields: list[str]) -> str:
    return "{" + ", ".join([*fields[:2], *(["..."] if len(fields) > 2 else [])]) + "}"


def _shown(document: Document, path: Path, found: object) -> str:
    """A value in the spelling of the file. Variables are shown by name, and secrets never."""
    if isinstance(found, Mapping | list):
        return _kind(found)
    if path and path[-1] in _SECRET:
        return "the value"
    mark = document.marks.get(path)
    written = mark.written if mark else str(found).lower() if isinstance(found, bool) else str(found)
    # A text such as "64" is shown with its quotes, because the quotes are the mistake.
    return repr(written) if isinstance(found, str) and _NO_TEXT.fullmatch(written) else plain(written)


def _kind(value: object) -> str:
    match value:
        case Mapping():
            return "a mapping"
        case list():
            return "a list"
        case str():
            return "a text"
        case _:
            return "a single value"


def _description(file: type[Section], path: Path) -> str:
    """The schema's description of the field at `path`; the first letter is in lower case."""
    section = _section(file, path[:-1])
    field = section.model_fields.get(str(path[-1])) if section else None
    text = field.description if field else None
    return text[0].lower() + text[1:].rstrip(".") if text else "it is needed"


def _section(file: type[Section], path: Path) -> type[BaseModel] | None:
    """The section that describes the value at `path`."""
    kind: Any = file
    for part in path:
        kind = _plain(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field else None
        elif get_origin(kind) in (dict, list):
            kind = get_args(kind)[-1]
        else:
            return None
    kind = _plain(kind)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _plain(kind: Any) -> Any:
    """A type without `Annotated` and without `| None`."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, types.UnionType):
            kind = next(part for part in get_args(kind) if part is not type(None))
        else:
            return kind
