"""Responses: POST /v1/responses of OpenAI, as vLLM 0.32 serves it. Engines store answers if the tier allows it."""

from __future__ import annotations

from typing import Any, Final

import orjson
from msgspec import Raw

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.answers.assemble import Assembly
from gateway.wire.answers.cut import CutEnding, named_event
from gateway.wire.answers.events import EventKind, TypedReader
from gateway.wire.answers.shapes import ABSENT, Typed
from gateway.wire.answers.whole import WholeForm, read_usage, usage_at_end
from gateway.wire.apis import response_input
from gateway.wire.apis.fields import ALLOW, SAMPLING, STRIP, ruled
from gateway.wire.apis.response_draft import Draft
from gateway.wire.apis.row import Answers, Api, Shape
from gateway.wire.body import bounds, checks, prompt
from gateway.wire.body.checks import BadRequest, Check, wrong_type
from gateway.wire.body.content import bad_role, others, role_fits, text_or_parts, utf8
from gateway.wire.body.prompt import Prompt
from gateway.wire.errors.replies import Dialect

ITEMS: Final = frozenset({"message", "function_call", "function_call_output", "reasoning"})

FIELDS: Final[dict[str, Check]] = {
    **SAMPLING,
    **ruled(STRIP, "context_management max_tool_calls background_options image"),
    **ruled(ALLOW, "input tool_choice parallel_tool_calls truncation include_reasoning"),
    **ruled(ALLOW, "frequency_penalty presence_penalty repetition_penalty"),
    **ruled(ALLOW, "skip_special_tokens spaces_between_special_tokens include_stop_str_in_output"),
    "enable_response_messages": checks.boolean,
    **ruled(checks.short, "logit_bias stop_token_ids"),
    **ruled(checks.stateful, "conversation prompt previous_input_messages previous_response"),
    "previous_response_id": checks.previous_response,
    "instructions": checks.string,
    "background": checks.never,
    "store": checks.store,
    "tools": checks.objects,
    **ruled(checks.mapping, "text structured_outputs"),
    "include": bounds.includes,
    "reasoning": bounds.reasoning,
    "stream_options": checks.stream_options,
    "stop": checks.stops,
    "top_logprobs": bounds.top_log_probs,
    "max_output_tokens": bounds.output_cap,
    "chat_template_kwargs": checks.template_options,
}


def measure(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The size of the prompt: `input` is a text or a list of items."""
    given = fields["input"]
    if type(given) is str:
        total = utf8(given)
    else:
        total = sum(_item(item, f"input[{i}]", caps) for i, item in enumerate(prompt.items(given, "input")))
    return Prompt(total)


def _item(item: Any, field: str, caps: Caps) -> int:
    if type(item) is not dict:
        raise wrong_type(field, "an object", item)
    item_type = item.get("type", "message")
    if type(item_type) is not str or item_type not in ITEMS:
        raise BadRequest(f"{field}.type", f"must be one of {', '.join(sorted(ITEMS))}")
    if item_type == "message" and not role_fits(item):
        raise bad_role(item, field)
    total = 0
    for name in ("content", "output", "summary"):
        if item.get(name) is not None:
            total += text_or_parts(item[name], f"{field}.{name}", caps)
    return total + others(item, field, ("role", "type", "content", "output", "summary"))


_LAST_EVENTS: Final = (b"event: response.completed", b"event: response.incomplete")


class ResponsesReader(TypedReader):
    """Reads streams of Responses: `response.created` ... `response.completed`, `.incomplete` or `.failed`."""

    __slots__ = ("_draft",)
    delta = b"event: response.output_text.delta\n"
    empty = b'"delta":""'

    def __init__(self) -> None:
        super().__init__()
        self._draft: Draft | None = None

    def remember(self) -> None:
        self._draft = Draft()

    def plain(self, data: bytes, start: int) -> bool:
        if not super().plain(data, start):
            return False
        if self._draft is not None:
            self._draft.add(data[start:])
        return True

    def read(self, event: bytes) -> EventKind:
        if self._draft is not None:
            self._draft.add(event)
        return super().read(event)

    def _cut_short(self, cut: CutEnding, choices: int, wants_usage: bool) -> list[bytes]:
        return [] if self._draft is None else end_of_response(self._draft, cut)

    def _take(self, typed: Typed) -> EventKind:
        if typed.response is not None:
            self.model = self.model or bytes(typed.response.model)
            self.response_id = self.response_id or bytes(typed.response.id)
        match typed.type:
            case "response.completed" | "response.incomplete":
                self.finished = self.done = True
                if typed.response is not None:
                    self._take_usage(read_usage(typed.response.usage))
                return EventKind.FINISH
            case "response.failed":
                return self._failed(ABSENT if typed.response is None else typed.response.error)
            case "error":
                # An error event of this API has no `error` object: code and message are fields of the event.
                code, message = bytes(typed.code) or b"null", bytes(typed.message) or b"null"
                return self._failed(Raw(b'{"code":%b,"message":%b}' % (code, message)))
        return self._content(typed.delta) if typed.type.endswith(".delta") else EventKind.OTHER

    def read_long(self, head: bytes, tail: bytes) -> None:
        super().read_long(head, tail)
        # The last event repeats the whole answer, so it is the most likely one to be too long.
        if head.startswith(_LAST_EVENTS):
            self.finished = self.done = True
            self._take_usage(usage_at_end(tail))


def end_of_response(draft: Draft, cut: CutEnding) -> list[bytes]:
    """The last events of a stream that is cut; none if it never began."""
    response, items, closing = draft.taken()
    if response is None:
        return []
    usage = {
        "input_tokens": cut.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": cut.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": cut.prompt_tokens + cut.output_tokens,
    }
    response |= {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": items,
        "usage": usage,
        **cut.mark(True),
    }
    closing.append({"type": "response.incomplete", "response": response})
    return [named_event({**event, "sequence_number": number}) for number, event in enumerate(closing, draft.events)]


class ResponseAssembly(Assembly):
    """Takes the whole response from the last event of its stream, which repeats the whole content."""

    __slots__ = ("_response",)

    def __init__(self) -> None:
        super().__init__()
        self._response: dict[str, Any] = {}

    def _take(self, event: dict[str, Any]) -> None:
        if event.get("type") in ("response.completed", "response.incomplete"):
            response = event["response"]
            if type(response) is not dict:
                raise TypeError("the response is not an object")
            self._response = response

    def _whole(self) -> dict[str, Any]:
        if not self._response:
            raise LookupError("no event has the whole response")
        return self._response


class ResponsesDialect(Dialect):
    """OpenAI's format, with its own error event."""

    __slots__ = ()

    def event(self, error: dict[str, Any]) -> bytes:
        # In OpenAI's reference, these fields are at the top level. The SDK raises only if there is an `error` as well.
        inner = error["error"]
        flat = {name: inner[name] for name in ("code", "message", "param")}
        return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", **flat, "sequence_number": 0, **error})


RESPONSES: Final = Api(
    "responses",
    (Endpoint.RESPONSES,),
    Shape(
        FIELDS,
        ("input",),
        measure,
        caps=("max_output_tokens",),
        fit=response_input.fit,
    ),
    Answers(WholeForm(generates=True, own_error=True), ResponsesReader, ResponseAssembly),
    ResponsesDialect(),
)
