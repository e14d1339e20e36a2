"""Servers of the Responses API."""

from __future__ import annotations

from typing import Any, Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script

_USED: Final = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}


def _response(status: str, text: str = s.TEXT, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    done = status != "in_progress"
    told = {"output": [item] if done else [], "usage": _USED if done else None}
    return {"id": "resp_1", "object": "response", "created_at": 1, "model": s.MODEL, "status": status, **told, **fields}


def _delta(text: str, **fields: Any) -> bytes:
    return s.typed("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=text, **fields)


_LONG: Final = _response("in_progress", instructions="x" * 40_000)
_BEGUN: Final = s.typed("response.created", response=_response("in_progress"), sequence_number=0)
_DELTAS: Final = (_delta("Hi", sequence_number=1), _delta(" there", sequence_number=2))
_ENDED: Final = s.typed("response.completed", response=_response("completed"), sequence_number=3)


def _script(name: str, source: str, data: bytes, text: str | None = s.TEXT, **fields: Any) -> Script:
    return Script(name, source, data, text, s.RESPONSES, **fields)


SCRIPTS: Final = (
    _script(
        "the whole row of events",
        "platform.openai.com, streaming events",
        s.chunked(
            _BEGUN,
            s.typed("response.in_progress", response=_response("in_progress")),
            s.typed(
                "response.output_item.added", output_index=0, item={"type": "message", "id": "msg_1", "content": []}
            ),
            *_DELTAS,
            s.typed("response.output_text.done", text=s.TEXT),
            _ENDED,
        ),
        usage=(5, 2),
    ),
    _script(
        "the request echoed twice, 40 KB each time",
        "platform.openai.com, response.created and response.in_progress: instructions and tools are repeated",
        s.chunked(
            s.typed("response.created", response=_LONG),
            s.typed("response.in_progress", response=_LONG),
            *_DELTAS,
            _ENDED,
        ),
        usage=(5, 2),
    ),
    _script(
        "no sequence numbers, no indexes",
        "Oaklight/llm-rosetta#56: deltas without output_index and content_index",
        s.chunked(
            s.typed("response.created", response={"id": "r"}),
            *(s.typed("response.output_text.delta", delta=t) for t in ("Hi", " there")),
            _ENDED,
        ),
        usage=(5, 2),
    ),
    _script(
        "response.completed without id, output and usage",
        "Oaklight/llm-rosetta#56: the completed response lacks its fields",
        s.chunked(_BEGUN, *_DELTAS, s.typed("response.completed", response={"status": "completed"})),
        assembled=Ends.EITHER,
    ),
    _script(
        "no deltas, the text only when done",
        "Sophomoresty/gemini-web2api#57: created, output_text.done, completed",
        s.chunked(_BEGUN, s.typed("response.output_text.done", text=s.TEXT), _ENDED),
        None,
        usage=(5, 2),
    ),
    _script(
        "response.incomplete",
        "platform.openai.com, response.incomplete: max_output_tokens was reached",
        s.chunked(
            _BEGUN,
            *_DELTAS,
            s.typed(
                "response.incomplete",
                response=_response("incomplete", incomplete_details={"reason": "max_output_tokens"}),
            ),
        ),
        usage=(5, 2),
    ),
    _script(
        "response.failed after the first tokens",
        "platform.openai.com, response.failed",
        s.chunked(
            _BEGUN,
            _DELTAS[0],
            s.typed("response.failed", response=_response("failed", error={"code": "server_error", "message": "x"})),
        ),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    _script(
        "response.failed for a rate limit, before any token",
        "platform.openai.com, the response object: error codes rate_limit_exceeded, server_error, invalid_prompt",
        s.chunked(
            _BEGUN,
            s.typed(
                "response.failed", response=_response("failed", error={"code": "rate_limit_exceeded", "message": "x"})
            ),
        ),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    _script(
        "response.failed for the prompt, before any token",
        "platform.openai.com, the response object: error codes rate_limit_exceeded, server_error, invalid_prompt",
        s.chunked(
            _BEGUN,
            s.typed("response.failed", response=_response("failed", error={"code": "invalid_prompt", "message": "x"})),
        ),
        ends=Ends.REFUSED,
        status=400,
    ),
    _script(
        "an error event of the API",
        "platform.openai.com, error event: code, message and param on the top level",
        s.chunked(_BEGUN, s.typed("error", code="server_error", message="x", param=None, sequence_number=1)),
        "",
        ends=Ends.BROKEN,
        fault=None,
    ),
    _script(
        "keepalive events",
        "openai-php/laravel#189: events of type keepalive",
        s.chunked(s.typed("keepalive", sequence_number=0), _BEGUN, s.typed("keepalive"), *_DELTAS, _ENDED),
        usage=(5, 2),
    ),
    _script(
        "events that nobody knows",
        "platform.openai.com: new events are added over time",
        s.chunked(_BEGUN, s.typed("response.thoughts.added", x={"deep": [1]}), *_DELTAS, _ENDED),
        usage=(5, 2),
    ),
    _script(
        "response.done in place of response.completed, and [DONE]",
        "platform.openai.com, Realtime: response.done; proxies add [DONE] of the chat API",
        s.chunked(_BEGUN, *_DELTAS, s.typed("response.done", response=_response("completed")), s.DONE),
        assembled=Ends.EITHER,
    ),
    _script(
        "a last event of 400 KB",
        "platform.openai.com, response.completed repeats all of the output",
        s.chunked(
            _BEGUN, *_DELTAS, s.typed("response.completed", response=_response("completed", padding="y" * 400_000))
        ),
        usage=(5, 2),
    ),
    _script(
        "types only in the data, no names of events",
        "llama.cpp and others: `data:` alone, its type inside",
        s.chunked(*(event.split(b"\n", 1)[1] for event in (_BEGUN, *_DELTAS, _ENDED))),
        usage=(5, 2),
    ),
    _script(
        "arguments of a function of 400 KB in one event",
        "microsoft/Agents-for-python#507: one line beyond 512 KB",
        s.chunked(_BEGUN, s.typed("response.function_call_arguments.delta", delta="z" * 400_000), _ENDED),
        None,
        usage=(5, 2),
    ),
    _script(
        "a whole response",
        "platform.openai.com, the response object",
        s.sized(s.dumped(_response("completed"))),
        stream=False,
        usage=(5, 2),
    ),
    _script(
        "a whole response that failed, with status 200",
        "platform.openai.com, the response object: status failed and an error",
        s.sized(s.dumped(_response("failed", "", error={"code": "server_error", "message": "x"}))),
        "",
        stream=False,
        usage=(5, 2),
    ),
)
