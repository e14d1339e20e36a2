"""llama.cpp's server, and llama-cpp-python's."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script

_TIMINGS: Final = {
    "prompt_n": 5,
    "prompt_ms": 12.5,
    "predicted_n": 2,
    "predicted_ms": 40.25,
    "predicted_per_second": 49.7,
}
_TOO_LONG: Final = {
    "code": 400,
    "message": "the request exceeds the available context size",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 14429,
    "n_ctx": 8192,
}

SCRIPTS: Final = (
    Script(
        "content null with the role, then usage and timings in a last chunk",
        "ggml-org/llama.cpp#14268 and #15444: the first delta's content is null; usage in a chunk without choices",
        s.chunked(s.say(content=None, role="assistant"), s.HI, s.THERE, s.STOP, s.usage(timings=_TIMINGS), s.DONE),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "usage in the chunk that has the finish_reason",
        "ggml-org/llama.cpp#15444: before it, usage was in the last chunk with a choice",
        s.chunked(s.HI, s.THERE, s.data(s.spoken(finish="stop") | {"usage": s.USED, "timings": _TIMINGS}), s.DONE),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "[DONE] without a blank line after it",
        "darshi1337/apogee#139: [DONE] comes without its blank line",
        s.chunked(s.HI, s.THERE, s.STOP, b"data: [DONE]\n"),
        s.TEXT,
    ),
    Script(
        "[DONE] without any line end",
        "darshi1337/apogee#139: [DONE] comes without its blank line",
        s.chunked(s.HI, s.THERE, s.STOP, b"data: [DONE]"),
        s.TEXT,
    ),
    Script(
        "a colon now and then while the prompt is processed",
        "mistralai/mistral-vibe#776: `:` keeps the connection alive",
        s.chunked(b":\n\n", b":\n\n", s.HI, b":\n\n", s.THERE, s.STOP, s.DONE),
        s.TEXT,
    ),
    Script(
        "an error in a field of its own, `error:`",
        "ggml-org/llama.cpp#16109: a field that no decoder knows, in a 200",
        s.chunked(b"error: " + s.dumped(_TOO_LONG) + b"\n\n", s.DONE),
        ends=Ends.EITHER,
    ),
    Script(
        "an error of code 400 in the first event of a 200",
        "ggml-org/llama.cpp#14566: invalid input is told in the stream",
        s.chunked(s.data({"error": _TOO_LONG}), s.DONE),
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "an error of code 500 in the first event of a 200",
        "ggml-org/llama.cpp#15780: a context that is exceeded had code 500 at first",
        s.chunked(s.data({"error": {**_TOO_LONG, "code": 500}}), s.DONE),
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "still loading: 503",
        "mostlygeek/llama-swap#146: 503 while the model is loaded",
        s.sized(
            s.dumped({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),
            content_type="application/json; charset=utf-8",
            status="503 Service Unavailable",
        ),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    Script(
        "a context that is exceeded, as the body of a 200",
        "oobabooga/textgen#7257: the error object without its status",
        s.sized(s.dumped({"error": _TOO_LONG})),
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "a whole answer with timings",
        "llama.cpp, tools/server/README: timings beside usage",
        s.sized(s.completion(timings=_TIMINGS, system_fingerprint="b1-a414a44", __verbose={"x": [1]})),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "a text completion without [DONE]",
        "abetlen/llama-cpp-python#133: the stream ends with the finish_reason",
        s.chunked(
            *(
                s.data(
                    {
                        "id": "c",
                        "object": "text_completion",
                        "choices": [{"text": t, "index": 0, "logprobs": None, "finish_reason": f}],
                    }
                )
                for t, f in (("Hi", None), (" there", None), ("", "stop"))
            )
        ),
        s.TEXT,
        s.COMPLETIONS,
    ),
    Script(
        "finish_reason null and no [DONE]",
        "abetlen/llama-cpp-python#735: finish_reason is never said",
        s.chunked(s.HI, s.THERE),
        s.TEXT,
        ends=Ends.BROKEN,
    ),
    Script(
        "lines that end with CR LF",
        "sse-starlette, which llama-cpp-python uses, ends lines with CR LF",
        s.chunked(
            *(
                e.replace(b"\n", b"\r\n")
                for e in (s.ROLE, s.HI, b": ping - 2025-01-01 00:00:00\n\n", s.THERE, s.STOP, s.DONE)
            )
        ),
        s.TEXT,
    ),
)
