"""A checked request, as it is sent to engines."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.core.request import Endpoint
from gateway.wire.apis.table import API_OF
from gateway.wire.body.prompt import Prompt
from gateway.wire.body.tools import NOT_RENAMED, Renamed


class Parsed:
    """A checked request. All attempts share it, so `render` does not change it."""

    __slots__ = (
        "api",
        "assembled",
        "batch",
        "cap_field",
        "changed",
        "choices",
        "endpoint",
        "fields",
        "max_tokens",
        "model",
        "options",
        "payload",
        "picture_tokens",
        "prompt_bytes",
        "prompt_exact",
        "renamed",
        "stream",
        "tied",
        "wants_usage",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        stream: bool,
        assembled: bool,
        wants_usage: bool,
        fields: dict[str, Any],
        payload: bytes,
        options: bytes,
        tied: dict[str, Any],
        prompt: Prompt,
        choices: int,
        max_tokens: int | None,
        cap_field: str | None,
        changed: tuple[str, ...],
        renamed: Renamed = NOT_RENAMED,
    ) -> None:
        self.api = API_OF[endpoint]
        """The row of the API."""
        self.endpoint = endpoint
        self.model = model
        """Name of the model; empty if the client gave none, until one is chosen."""
        self.stream = stream
        self.assembled = assembled
        """Whether the engine is asked for a stream although the client gets a whole answer."""
        self.wants_usage = wants_usage
        """Whether the client asked for the usage chunk of a stream. If not, it is not forwarded."""
        self.fields = fields
        """Fields for the engine, until `let_go`. `render` adds the model, the cap and what is tied to it."""
        self.payload = payload
        """The fields for the engine as JSON, with the additions of the tier."""
        self.options = options
        """The field `stream_options` with a comma after it, as JSON; empty if the engine gets none."""
        self.tied = tied
        self.picture_tokens = 0
        """Estimated tokens of its pictures, in units of its model; 0 until they are measured."""
        self.prompt_bytes = prompt.size
        self.prompt_exact = prompt.exact
        self.choices = choices
        self.batch = prompt.batch
        """Number of prompts or inputs."""
        self.max_tokens = max_tokens
        """Output cap per choice that the client asked for, before clamping; None if it set none."""
        self.cap_field = cap_field
        """Name of the field for the output cap; None if the API has none."""
        self.changed = changed
        """Names of the fields that were clamped or dropped, in a form for a header."""
        self.renamed = renamed
        """Functions whose name at the engine differs from the client's name."""

    def let_go(self) -> None:
        """Forget the fields, which may take 30 times the memory of the payload. Those of a form are its only copy."""
        if not self.api.shape.is_form:
            self.fields = {}

    def read_fields(self) -> dict[str, Any]:
        """The fields, read from the payload if they are forgotten."""
        fields: dict[str, Any] = self.fields or orjson.loads(self.payload)
        return fields
