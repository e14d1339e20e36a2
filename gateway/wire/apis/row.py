"""The columns of the table of APIs: all properties in which APIs differ.

A row has everything that is specific to one API. Other code looks up the row of an endpoint once per request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.answers.assemble import Assembly
from gateway.wire.answers.events import StreamReader
from gateway.wire.answers.whole import NUMBERS, WholeForm
from gateway.wire.body.checks import Check
from gateway.wire.body.prompt import MEASURED, Measure
from gateway.wire.body.tools import Renamed
from gateway.wire.errors.replies import OPENAI, Dialect

Fit: TypeAlias = Callable[[dict[str, Any], Caps, list[str]], Renamed]
"""A function that converts fields to the form that engines read, and adds the names of changed fields to the list."""
Read: TypeAlias = Callable[[bytes], dict[str, Any]]
Write: TypeAlias = Callable[[dict[str, Any]], bytes]


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of an API's requests."""

    rules: dict[str, Check]
    """Known fields, with their checkers."""
    required: tuple[str, ...]
    """Fields without which a request is refused. `model` is not among them: there may be only one to choose."""
    measure: Measure
    """Measures the size of the prompt."""
    caps: tuple[str, ...] = ("max_tokens",)
    """Possible names of the output cap. The first of them that a client used is kept. If it used none, the last is
    written.
    """
    stop: str | None = "stop"
    """Name of the field for stop sequences; None if there is none."""
    usage: bool = False
    """Whether a stream must ask for its usage, in `stream_options`."""
    usage_flag: str | None = None
    """Name of the field that asks for usage in an API without `stream_options`."""
    priority: bool = True
    """Whether the engine accepts the tier's `priority`."""
    measured: frozenset[str] | None = MEASURED
    """Fields whose length `measure` counts, and short ones. All others are added to it. None: nothing is added."""
    fit: Fit | None = None
    read: Read | None = None
    write: Write | None = None
    """Writes a body that is a form, without the model; None if bodies are JSON."""

    @property
    def is_form(self) -> bool:
        """Whether bodies are multipart/form-data instead of JSON."""
        return self.write is not None


@dataclass(frozen=True, slots=True)
class Answers:
    """The form of an API's answers."""

    whole: WholeForm = NUMBERS
    reader: type[StreamReader] | None = None
    """Reads a stream and detects its end; None if the API has no streams."""
    assembly: Callable[[], Assembly] | None = None
    """Assembles a whole answer from a stream; None if answers are never assembled."""
    as_events: Callable[[bytes, bool], list[bytes]] | None = None
    """Converts a whole answer to the events of a stream, with or without usage; None if that is impossible."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API."""

    name: str
    """Name of the API in a policy (`tiers.*.apis`)."""
    endpoints: tuple[Endpoint, ...]
    """Paths of the API."""
    shape: Shape
    answers: Answers = Answers()
    dialect: Dialect = OPENAI
    """Error format for its clients."""
    counting: bytes | None = None
    """Path that counts the tokens of a request; None if the API has no such path."""
    unserved: Mapping[bytes, str] = field(default_factory=dict)
    """Error messages for paths of the same API that are not served, by prefix."""
    upstream_lines: tuple[str, ...] = ()
    """Header lines of every request to a replica."""
