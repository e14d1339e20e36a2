"""Messages: POST /v1/messages of Anthropic, as vLLM 0.32 serves it, and the counting of its tokens."""

from __future__ import annotations

from typing import Any, Final

import orjson
from msgspec import Raw

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.answers.assemble import Assembly, grow
from gateway.wire.answers.cut import CutEnding, named_event
from gateway.wire.answers.events import EventKind, TypedReader, index_in
from gateway.wire.answers.shapes import EMPTY, Inner, Stop, Typed, decode_inner, decode_stop
from gateway.wire.answers.whole import WholeForm, read_usage
from gateway.wire.apis.fields import ALLOW, SHARED, STRIP, ruled
from gateway.wire.apis.row import Answers, Api, Shape
from gateway.wire.body import bounds, checks, prompt
from gateway.wire.body.checks import Check
from gateway.wire.body.tool_results import without_files
from gateway.wire.body.tools import NOT_RENAMED, Kept, Renamed, settle
from gateway.wire.errors.reasons import RefusalRow
from gateway.wire.errors.replies import Dialect, Problem

PATH: Final = Endpoint.MESSAGES.value.encode()
COUNT_TOKENS: Final = PATH + b"/count_tokens"
NO_BATCHES: Final = "Batches of messages are not served here: send each message to /v1/messages."

FIELDS: Final[dict[str, Check]] = {
    **SHARED,
    **ruled(STRIP, "mcp_servers context_management cache_control"),
    **ruled(checks.unserved, "compaction thread"),
    "model": checks.model_name,
    "stream": checks.boolean,
    **ruled(ALLOW, "messages metadata system temperature tool_choice top_k top_p"),
    **ruled(checks.mapping, "output_config output_format"),
    "tools": checks.objects,
    "thinking": bounds.thinking,
    "stop_sequences": checks.stop_list,
    "max_tokens": bounds.output_cap,
    "chat_template_kwargs": checks.template_options,
}
_SERVER_BLOCKS: Final = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "advisor_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
        "compaction",
    }
)
"""Types of content blocks that only Anthropic's own servers write into answers."""


def fit(fields: dict[str, Any], caps: Caps, changed: list[str]) -> Renamed:
    """Drop the blocks and tools that only Anthropic's servers read.

    A client sends its whole history with every request. So parts of the history that came from another server must not
    make the request fail.
    """
    given = fields["messages"]
    if type(given) is list:
        for message in given:
            content = message.get("content") if type(message) is dict else None
            if type(content) is list:
                _blocks(message, content, caps, changed)
    if "tools" in fields:
        _fit_tools(fields, changed)
    if "output_format" in fields:  # the name before `output_config`; engines know only the new one
        fields["output_config"] = {"format": fields.pop("output_format"), **fields.get("output_config", {})}
    return NOT_RENAMED


def _blocks(message: dict[str, Any], content: list[Any], caps: Caps, changed: list[str]) -> None:
    gone: set[int] = set()
    for i, block in enumerate(content):
        block_type = block.get("type") if type(block) is dict else None
        if block_type == "tool_result":
            without_files(block, "content", caps, changed)
        elif type(block_type) is str and block_type in _SERVER_BLOCKS:
            changed.append(f"messages.{block_type}")
            gone.add(i)
    if gone:
        message["content"] = [block for i, block in enumerate(content) if i not in gone] or ""


def _fit_tools(fields: dict[str, Any], changed: list[str]) -> None:
    """Keep only tools that have a schema.

    A typed tool (bash, text editor, computer) has no schema, because Anthropic's models know it. vLLM would refuse the
    request.
    """
    kept = Kept(changed)
    for tool in fields["tools"]:
        if tool.get("type", "custom") in ("custom", None):
            kept.keep(tool, str(tool.get("name")))
        else:
            kept.drop(tool, tool.get("name"))
    settle(fields, kept)


class MessagesReader(TypedReader):
    """Reads streams of Messages: `message_start` ... `message_delta` with the stop reason, `message_stop`."""

    __slots__ = ("_begun", "_block", "_stopped")
    delta = b"event: content_block_delta\n"
    empty = b':""}'

    def __init__(self) -> None:
        super().__init__()
        self._begun = False
        self._block = -1
        """Index of the content block that has not ended; below 0 if there is none."""
        self._stopped = False
        """Whether a stop reason was given."""

    def _take(self, typed: Typed) -> EventKind:
        match typed.type:
            case "error":
                return self._failed(typed.error)
            case "content_block_delta":
                return self._content(typed.delta)
            case "content_block_start":
                self._block = index_in(typed.index, -1)
            case "content_block_stop":
                self._block = -1
            case "message_start":
                self._begun = True
                if bytes(typed.message) not in EMPTY:
                    inner: Inner = decode_inner(typed.message)
                    self.model = bytes(inner.model)
                    self._take_usage(read_usage(inner.usage))
            case "message_delta":
                self._take_usage(read_usage(typed.usage))
                self._ends(typed.delta)
                self._stopped = True
                return EventKind.FINISH
            case "message_stop":
                self.finished = self.done = True
                return EventKind.DONE
        return EventKind.OTHER

    def _ends(self, delta: Raw) -> None:
        """Record a stop reason, which ends the answer. vLLM sends null at its shutdown, which is no stop reason."""
        if bytes(delta) in EMPTY:
            return
        stop: Stop = decode_stop(delta)
        self.aborted = stop.stop_reason is None
        self.finished = self.finished or isinstance(stop.stop_reason, str)

    def _cut_short(self, cut: CutEnding, choices: int, wants_usage: bool) -> list[bytes]:
        return end_of_message(self._block, self._stopped, cut) if self._begun else []


def end_of_message(open_block: int, stopped: bool, cut: CutEnding) -> list[bytes]:
    """The last events of a stream that is cut.

    `open_block`: index of the content block that has not ended; below 0 if there is none. `stopped`: whether only the
    last event is missing.
    """
    if stopped:
        return [named_event({"type": "message_stop"})]
    events = [] if open_block < 0 else [named_event({"type": "content_block_stop", "index": open_block})]
    stop = {"stop_reason": "max_tokens", "stop_sequence": None}
    usage = {"input_tokens": cut.prompt_tokens, "output_tokens": cut.output_tokens}
    events.append(named_event({"type": "message_delta", "delta": stop, "usage": usage, **cut.mark(True)}))
    return [*events, named_event({"type": "message_stop"})]


class MessageAssembly(Assembly):
    """A message, assembled block by block."""

    __slots__ = ("_arguments", "_message")

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] = {}
        self._arguments: dict[int, list[str]] = {}
        """JSON of tool inputs in pieces, by index of the content block."""

    def _take(self, event: dict[str, Any]) -> None:
        message = self._message
        match event.get("type"):
            case "message_start":
                message.update(event["message"])
            case "content_block_start":
                message.setdefault("content", []).append(event["content_block"])
            case "content_block_delta":
                self._delta(event["index"], event["delta"])
            case "message_delta":
                message.update(event.get("delta") or {})
                message["usage"] = {**(message.get("usage") or {}), **(event.get("usage") or {})}
                if "tailgate" in event:
                    message["tailgate"] = event["tailgate"]

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._message["content"][index]
        for name, value in delta.items():
            if name == "partial_json":
                self._arguments.setdefault(index, []).append(value)
            elif name != "type":
                grow(block, name, value)

    def _whole(self) -> dict[str, Any]:
        for index, texts in self._arguments.items():
            self._message["content"][index]["input"] = _object("".join(texts))
        return self._message


def _object(text: str) -> Any:
    """Arguments of a tool call; empty if the answer was cut before they were complete."""
    try:
        return orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return {}


class AnthropicDialect(Dialect):
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`."""

    __slots__ = ()

    def error(self, row: RefusalRow, message: str, problem: Problem, request_id: str | None) -> dict[str, Any]:
        error = {"type": "error", "error": {"type": row.anthropic_type, "message": message}}
        return error if request_id is None else {**error, "request_id": request_id}

    def event(self, error: dict[str, Any]) -> bytes:
        return b"event: error\ndata: %b\n\n" % orjson.dumps(error)

    def id_lines(self, request_id: bytes) -> bytes:
        return b"x-request-id: %b\r\nrequest-id: %b\r\n" % (request_id, request_id)


ANTHROPIC: Final = AnthropicDialect()
MESSAGES: Final = Api(
    "messages",
    (Endpoint.MESSAGES,),
    Shape(FIELDS, ("messages", "max_tokens"), prompt.chat, stop="stop_sequences", fit=fit),
    Answers(WholeForm(generates=True, null_stop_aborts=True), MessagesReader, MessageAssembly),
    ANTHROPIC,
    counting=COUNT_TOKENS,
    unserved={b"/v1/messages/batches": NO_BATCHES},
    upstream_lines=("anthropic-version: 2023-06-01",),
)

COUNTED_FIELDS: Final = (
    *("model", "messages", "system", "tools", "tool_choice", "thinking"),
    *("output_config", "output_format", "chat_template_kwargs"),
)
COUNTED: Final = Shape(
    {name: FIELDS[name] for name in COUNTED_FIELDS},
    ("messages",),
    prompt.chat,
    caps=(),
    stop=None,
    fit=fit,
)
"""Fields of a counting request that become part of the prompt."""
