"""Base class of the sections of a policy file, and functions that declare their fields."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gateway.policy.sections import units


def _title(section: type[Any]) -> str:
    return section.__name__.removesuffix("Section")


class Section(BaseModel):
    """Part of a policy file. No value is guessed, converted or ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, model_title_generator=_title)


def field(default: Any, written: str, description: str) -> Any:
    """A field whose default is a number that is shown as `written` in documentation."""
    return Field(default=default, description=description, json_schema_extra={"default": written})


def duration(default_s: float, description: str) -> Any:
    """A field for a duration. Its default is in seconds."""
    return field(default_s, units.write_seconds(default_s), description)


def share(part: float, description: str) -> Any:
    """A field for a share. Its default is from 0 to 1."""
    return field(part, units.write_share(part), description)


def plain(value: object, description: str) -> Any:
    """A field whose default is shown as it is."""
    return Field(default=value, description=description)


def nested(empty: Section, description: str) -> Any:
    """A field for a section. A missing section means the same as an empty section."""
    return Field(default=empty, description=description, json_schema_extra=_no_default)


def optional(description: str) -> Any:
    """A field that may be missing. The description says what a missing value means."""
    return Field(default=None, description=description, json_schema_extra=_no_default)


def _no_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)
