"""Servers of the Messages API."""

from __future__ import annotations

from typing import Any, Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script, Then

_MESSAGE: Final[dict[str, Any]] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": s.MODEL,
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 1},
}
_START: Final = s.typed("message_start", message=_MESSAGE)
_BLOCK: Final = s.typed("content_block_start", index=0, content_block={"type": "text", "text": ""})
_BLOCK_END: Final = s.typed("content_block_stop", index=0)
_STOP: Final = s.typed("message_stop")
_PING: Final = s.typed("ping")


def _text(text: str, index: int = 0) -> bytes:
    return s.typed("content_block_delta", index=index, delta={"type": "text_delta", "text": text})


def _end(output: object = 2, reason: object = "end_turn") -> bytes:
    return s.typed(
        "message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": output}
    )


_SAID: Final = (_START, _BLOCK, _text("Hi"), _text(" there"), _BLOCK_END)


def _script(name: str, source: str, data: bytes, text: str | None = s.TEXT, **fields: Any) -> Script:
    return Script(name, source, data, text, s.MESSAGES, **fields)


_WHOLE: Final = {
    **_MESSAGE,
    "content": [{"type": "text", "text": s.TEXT}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 2},
}

SCRIPTS: Final = (
    _script(
        "a message with pings",
        "docs.anthropic.com, streaming: ping events may come anywhere",
        s.chunked(_START, _PING, _BLOCK, _text("Hi"), _PING, _text(" there"), _BLOCK_END, _end(), _STOP),
        usage=(5, 2),
    ),
    _script(
        "no message_stop",
        "esengine/DeepSeek-Reasonix#8756: gateways end with a stop reason and no message_stop",
        s.chunked(*_SAID, _end()),
        usage=(5, 2),
    ),
    _script(
        "message_delta without stop_sequence",
        "vllm-project/vllm#55324: stop_sequence is left out",
        s.chunked(
            *_SAID, s.typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}), _STOP
        ),
        usage=(5, 2),
    ),
    _script(
        "usage of zeros at the end",
        "mozilla-ai/any-llm#1151: message_delta reported 0 and 0",
        s.chunked(
            *_SAID,
            s.typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": 0, "output_tokens": 0}),
            _STOP,
        ),
    ),
    _script(
        "input tokens only at the end",
        "mlx-node/mlx-node#45: input_tokens 0 in message_start",
        s.chunked(
            s.typed("message_start", message={**_MESSAGE, "usage": {"input_tokens": 0, "output_tokens": 0}}),
            *_SAID[1:],
            s.typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": 5, "output_tokens": 2}),
            _STOP,
        ),
        usage=(5, 2),
    ),
    _script(
        "thinking with its signature",
        "docs.anthropic.com, extended thinking: thinking_delta, signature_delta",
        s.chunked(
            _START,
            s.typed(
                "content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""}
            ),
            s.typed("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "Hm"}),
            s.typed("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "EqQ="}),
            _BLOCK_END,
            s.typed("content_block_start", index=1, content_block={"type": "text", "text": ""}),
            _text(s.TEXT, 1),
            s.typed("content_block_stop", index=1),
            _end(),
            _STOP,
        ),
        usage=(5, 2),
    ),
    _script(
        "input of a tool in pieces",
        "docs.anthropic.com, streaming: input_json_delta",
        s.chunked(
            _START,
            s.typed(
                "content_block_start", index=0, content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}}
            ),
            *(
                s.typed("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": part})
                for part in ("", '{"city"', ': "Oslo"}')
            ),
            _BLOCK_END,
            _end(2, "tool_use"),
            _STOP,
        ),
        "",
        usage=(5, 2),
    ),
    _script(
        "overloaded in the middle",
        "docs.anthropic.com, streaming: an error event with overloaded_error",
        s.chunked(*_SAID[:3], s.typed("error", error={"type": "overloaded_error", "message": "Overloaded"})),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    _script(
        "overloaded before the first token",
        "mito-ds/mito#1842: overloaded_error in a stream",
        s.chunked(s.typed("error", error={"details": None, "type": "overloaded_error", "message": "Overloaded"})),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    _script(
        "a request too large, told in an event",
        "docs.anthropic.com, errors: request_too_large, 413",
        s.chunked(s.typed("error", error={"type": "request_too_large", "message": "too large"})),
        ends=Ends.REFUSED,
        status=413,
    ),
    _script(
        "an error without a type",
        "vllm-project/vllm: the error object alone, also where every event has a type",
        s.chunked(
            _START, s.data({"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}})
        ),
        "",
        ends=Ends.BROKEN,
        fault=None,
    ),
    _script(
        "neither a stop reason nor an end",
        "vercel/ai#18331: the first generation is never ended",
        s.chunked(*_SAID),
        ends=Ends.BROKEN,
    ),
    _script(
        "a second message_start in the middle",
        "vercel/ai#18331: a retried generation spliced into the same body",
        s.chunked(*_SAID[:3], *_SAID, _end(), _STOP),
        None,
        assembled=Ends.EITHER,
    ),
    _script(
        "a text that comes whole with its block",
        "docs.anthropic.com, streaming: a block may start with text",
        s.chunked(
            _START,
            s.typed("content_block_start", index=0, content_block={"type": "text", "text": "Hi"}),
            _text(" there"),
            _BLOCK_END,
            _end(),
            _STOP,
        ),
        None,
        usage=(5, 2),
    ),
    _script(
        "[DONE] after message_stop",
        "proxies that add the end of the chat API to every stream",
        s.chunked(*_SAID, _end(), _STOP, s.DONE),
        usage=(5, 2),
    ),
    _script(
        "data without names of events",
        "proxies that drop `event:` lines",
        s.chunked(*(event.split(b"\n", 1)[1] for event in (*_SAID, _end(), _STOP))),
        usage=(5, 2),
    ),
    _script(
        "usage with more than tokens",
        "docs.anthropic.com, usage: cache_creation_input_tokens, server_tool_use, service_tier",
        s.chunked(
            *_SAID,
            s.typed(
                "message_delta",
                delta={"stop_reason": "end_turn"},
                context_management={"applied_edits": []},
                usage={"output_tokens": 2, "cache_read_input_tokens": 0, "server_tool_use": {"web_search_requests": 0}},
            ),
            _STOP,
        ),
        usage=(5, 2),
    ),
    _script(
        "message_stop, and the connection stays open",
        "earendil-works/pi#5592: gateways that do not end the HTTP answer with the message",
        s.chunked(*_SAID, _end(), _STOP, last=b""),
        then=Then.SILENCE,
        ends=Ends.EITHER,
        fault=None,
    ),
    _script(
        "nothing but pings after the stop reason",
        "tombii/better-ccflare#307: message_stop never came, pings went on",
        s.chunked(*_SAID, _end(), *[_PING] * 20, last=b""),
        then=Then.SILENCE,
        ends=Ends.EITHER,
        fault=None,
    ),
    _script(
        "closed after a delta, in peace",
        "tbphp/gpt-load#736: no content_block_stop, no message_delta, no message_stop",
        s.chunked(*_SAID[:4]),
        ends=Ends.BROKEN,
    ),
    _script(
        "killed in the middle",
        "BerriAI/litellm#39589: the connection drops in the body",
        s.chunked(*_SAID[:3], last=b""),
        "Hi",
        then=Then.CLOSE,
        ends=Ends.BROKEN,
        fault=True,
    ),
    _script(
        "a whole message", "docs.anthropic.com, the Messages API", s.sized(s.dumped(_WHOLE)), stream=False, usage=(5, 2)
    ),
    _script(
        "a whole message of thinking and a tool",
        "docs.anthropic.com, the Messages API",
        s.sized(
            s.dumped(
                {
                    **_WHOLE,
                    "stop_reason": "tool_use",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": "EqQ="},
                        {"type": "tool_use", "id": "t", "name": "f", "input": {"city": "Oslo"}},
                    ],
                }
            )
        ),
        "",
        stream=False,
        usage=(5, 2),
    ),
    _script(
        "refused: 400 in the dialect of Anthropic",
        "docs.anthropic.com, errors: invalid_request_error",
        s.sized(
            s.dumped(
                {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: must be > 0"}}
            ),
            status="400 Bad Request",
        ),
        ends=Ends.REFUSED,
        status=400,
    ),
    _script(
        "refused: 400 in the dialect of OpenAI",
        "kekzl/imp#1702: the envelope was OpenAI's",
        s.sized(
            s.dumped({"error": {"message": "no", "type": "BadRequestError", "code": 400}}), status="400 Bad Request"
        ),
        ends=Ends.REFUSED,
        status=400,
    ),
)
