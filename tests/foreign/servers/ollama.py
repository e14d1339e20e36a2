"""Ollama."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script

_CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
_ND: Final = b"".join(
    s.dumped({"model": s.MODEL, "message": {"role": "assistant", "content": t}, "done": d}) + b"\n"
    for t, d in (("Hi", False), (" there", False), ("", True))
)

SCRIPTS: Final = (
    Script(
        'finish_reason "" in every chunk but the last, a role in each',
        "ollama/ollama#4357: the empty string, and role assistant in each delta",
        s.chunked(
            s.say("Hi", "", role="assistant"),
            s.say(" there", "", role="assistant"),
            s.say("", "stop", role="assistant"),
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "a tool call whole in one chunk, without an index",
        "ollama/ollama#7881: delta.tool_calls[].index is missing",
        s.chunked(s.say("", role="assistant", tool_calls=[_CALL]), s.say("", "tool_calls"), s.DONE),
        assembled=Ends.EITHER,
    ),
    Script(
        "two tool calls, both with index 0",
        "BerriAI/litellm#37792: parallel calls all got index 0",
        s.chunked(
            *(s.say("", tool_calls=[{**_CALL, "id": f"call_{n}", "index": 0}]) for n in (1, 2)),
            s.say("", "stop"),
            s.DONE,
        ),
    ),
    Script(
        "tools called, finish_reason stop",
        "ollama/ollama#7963: streamed tool calls ended with stop",
        s.chunked(s.say("", tool_calls=[{**_CALL, "index": 0}]), s.say("", "stop"), s.usage(), s.DONE),
        usage=(5, 2),
    ),
    Script(
        "NDJSON where a stream of events was asked for",
        "docs.ollama.com/api: streams of its own API are newline-delimited JSON",
        s.chunked(*_ND.splitlines(keepends=True), content_type="application/x-ndjson"),
        None,
    ),
    Script(
        "bytes that are not UTF-8 in NDJSON",
        "openclaw/openclaw#120234: a corrupt byte in a line",
        s.chunked(_ND.replace(b"Hi", b"H\xff"), content_type="application/x-ndjson"),
        None,
    ),
    Script(
        "an error in the middle of a stream, its error a string",
        "docs.ollama.com/api/errors: an object with `error` as a string in the stream",
        s.chunked(s.HI, s.data({"error": "model runner has unexpectedly stopped"})),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "busy: 503, its error a string",
        "ollama/ollama#15934: server overloaded, as a string",
        s.sized(
            s.dumped({"error": "Server overloaded, please retry shortly (ref: 1)"}), status="503 Service Unavailable"
        ),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    Script(
        "the model is not there: 404",
        "ollama/ollama#15027: model not found",
        s.sized(
            s.dumped({"error": {"message": "model 'x' not found", "type": "api_error", "param": None, "code": None}}),
            status="404 Not Found",
        ),
        ends=Ends.REFUSED,
        status=404,
        fault=None,
    ),
    Script(
        "not enough memory: 500",
        "continuedev/continue#9649: model requires more system memory than is available",
        s.sized(
            s.dumped({"error": {"message": "model requires more system memory", "type": "api_error"}}),
            status="500 Internal Server Error",
        ),
        ends=Ends.REFUSED,
        status=502,
        fault=True,
    ),
    Script(
        "a response that ends while it reasons, without its last event",
        "ollama/ollama#17118: the HTTP answer ends properly, no terminal event",
        s.chunked(
            s.typed("response.created", response={"id": "r", "status": "in_progress"}),
            s.typed("response.reasoning_summary_text.delta", delta="Hm"),
        ),
        "",
        s.RESPONSES,
        ends=Ends.BROKEN,
    ),
    Script(
        "a whole answer, one of two fields of usage absent",
        "docs.ollama.com/openai: usage of a whole answer",
        s.sized(s.completion(usage={"completion_tokens": 2, "total_tokens": 2})),
        s.TEXT,
        stream=False,
    ),
)
