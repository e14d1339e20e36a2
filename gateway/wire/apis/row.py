"""The columns of the table of APIs.

A row has all knowledge of one API. All other code looks up the row of an endpoint once per request, and uses it.
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
from gateway.wire.body.prompt import Measure
from gateway.wire.body.prompt_text import ReadText
from gateway.wire.body.tools import Renamed
from gateway.wire.errors.replies import OPENAI, Dialect

Fit: TypeAlias = Callable[[dict[str, Any], Caps, list[str]], Renamed]
"""Brings the fields into the form that engines read, and adds the names of changed fields to the list."""
Read: TypeAlias = Callable[[bytes], dict[str, Any]]
Write: TypeAlias = Callable[[dict[str, Any]], bytes]


@dataclass(frozen=True, slots=True)
class Shape:
    """An API's requests."""

    rules: dict[str, Check]
    """The allowed fields, with their checkers."""
    required: tuple[str, ...]
    measure: Measure
    """The size of the prompt."""
    text: ReadText | None = None
    """The text of the prompt for a tokenizer; None if only the engine knows it."""
    caps: tuple[str, ...] = ("max_tokens",)
    """Names of the output cap: the first one that a client used is kept; without any, the last is written."""
    stop: str | None = "stop"
    """The field that stop sequences go to."""
    usage: bool = False
    """Whether a stream must ask for its usage, in `stream_options`."""
    usage_flag: str | None = None
    """The field that asks for usage, if there are no `stream_options`."""
    priority: bool = True
    """Whether the engine accepts the tier's `priority`."""
    fit: Fit | None = None
    read: Read | None = None
    write: Write | None = None
    """Reads and writes bodies that are forms, without the model; None if bodies are JSON."""

    @property
    def is_form(self) -> bool:
        """Whether a body is multipart/form-data, not JSON."""
        return self.write is not None


@dataclass(frozen=True, slots=True)
class Answers:
    """An API's answers."""

    whole: WholeForm = NUMBERS
    reader: type[StreamReader] | None = None
    """Follows one stream and detects its end; None without streams."""
    assembly: Callable[[], Assembly] | None = None
    """Assembles a whole answer from a stream; None if answers are never assembled."""
    as_events: Callable[[bytes, bool], list[bytes]] | None = None
    """Makes a stream from a whole answer, with or without usage; None if that is impossible."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API."""

    name: str
    """Its name in a policy (`tiers.*.apis`)."""
    endpoints: tuple[Endpoint, ...]
    """Its paths."""
    shape: Shape
    answers: Answers = Answers()
    dialect: Dialect = OPENAI
    """The error format that its clients read."""
    counting: bytes | None = None
    """The path that counts the tokens of its requests."""
    unserved: Mapping[bytes, str] = field(default_factory=dict)
    """Error messages for unserved paths of the same API, by prefix."""
    upstream_lines: tuple[str, ...] = ()
    """Header lines that every request to a replica has."""
