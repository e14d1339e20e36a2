"""vLLM."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script, Then


def _error(code: object, kind: str, message: str = "no") -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


_TOOL: Final = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
_ARGUMENTS: Final = ('{"city"', ': "Oslo"}')
_TEXT_CHUNK: Final = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": s.MODEL}


def _text(text: str, finish: object = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return s.data({**_TEXT_CHUNK, "choices": [choice], "usage": None})


SCRIPTS: Final = (
    # ---- streams
    Script(
        "role first, usage null in every chunk and counted at the end",
        "vllm-project/vllm#19662: the chunks of a chat stream",
        s.chunked(
            *(s.data(s.spoken(t, f) | {"usage": None}) for t, f in (("", None), ("Hi", None), (" there", "stop")))
        ).removesuffix(s.LAST)
        + s.chunk(s.usage())
        + s.chunk(s.DONE)
        + s.LAST,
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "usage in every chunk, as it grows",
        "docs.vllm.ai, stream_options.continuous_usage_stats",
        s.chunked(
            s.data(s.spoken("Hi") | {"usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}),
            s.data(s.spoken(" there", "stop") | {"usage": s.USED}),
            s.usage(),
            s.DONE,
        ),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "finish_reason null to the end, then [DONE]",
        "vllm-project/vllm#27572: a chat stream that ends with null as its finish_reason",
        s.chunked(s.ROLE, s.HI, s.THERE, s.say(""), s.DONE),
        s.TEXT,
    ),
    Script(
        "text together with finish_reason length",
        "vllm-project/vllm#35705: the delta with finish_reason length is not empty",
        s.chunked(s.ROLE, s.HI, s.say(" there", "length"), s.usage(), s.DONE),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "a tool call in pieces",
        "docs.vllm.ai, tool calling with streaming",
        s.chunked(
            s.ROLE,
            s.say(tool_calls=[_TOOL]),
            *(s.say(tool_calls=[{"index": 0, "function": {"arguments": part}}]) for part in _ARGUMENTS),
            s.say("", "tool_calls"),
            s.usage(),
            s.DONE,
        ),
        usage=(5, 2),
    ),
    Script(
        "reasoning first, under both of its names",
        "docs.vllm.ai, reasoning outputs: `reasoning`, before that `reasoning_content`",
        s.chunked(s.ROLE, s.say(reasoning="Hm"), s.say(reasoning_content="m"), s.HI, s.THERE, s.STOP, s.DONE),
        s.TEXT,
    ),
    Script(
        "two choices, interleaved",
        "docs.vllm.ai, `n` with stream",
        s.chunked(
            s.say("H", index=0),
            s.say("T", index=1),
            s.say("i", index=0),
            s.say("o", index=1),
            s.say("", "stop", index=0),
            s.say("", "length", index=1),
            s.usage(),
            s.DONE,
        ),
        None,
        choices=2,
        usage=(5, 2),
    ),
    Script(
        "a text completion",
        "docs.vllm.ai, the Completions API",
        s.chunked(
            _text("Hi"), _text(" there", "stop"), s.data({**_TEXT_CHUNK, "choices": [], "usage": s.USED}), s.DONE
        ),
        s.TEXT,
        s.COMPLETIONS,
        usage=(5, 2),
    ),
    Script(
        "several events in one chunk",
        "vllm-project/aibrix#2653: events are split and joined anywhere between engine and client",
        s.chunked(s.ROLE + s.HI + s.THERE, s.STOP + s.usage() + s.DONE),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "one event in three chunks",
        "vllm-project/aibrix#2653: events are split and joined anywhere between engine and client",
        s.chunked(s.ROLE, s.HI[:9], s.HI[9:40], s.HI[40:] + s.THERE[:3], s.THERE[3:], s.STOP, s.DONE),
        s.TEXT,
    ),
    Script(
        "log-probabilities with every token",
        "docs.vllm.ai, `logprobs` of a chat stream",
        s.chunked(
            s.data(
                {
                    **s.spoken(),
                    "choices": [
                        {
                            "index": 0,
                            "delta": {"content": "Hi there"},
                            "finish_reason": None,
                            "logprobs": {
                                "content": [{"token": "Hi", "logprob": -9999.0, "bytes": [72, 105], "top_logprobs": []}]
                            },
                        }
                    ],
                }
            ),
            s.STOP,
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "aborted when it is told to stop",
        "vllm-project/vllm: finish_reason abort, then a peaceful end",
        s.chunked(s.ROLE, s.HI, s.say("", "abort"), s.DONE),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    # ---- whole answers
    Script("a whole answer", "docs.vllm.ai, the Chat API", s.sized(s.completion()), s.TEXT, stream=False, usage=(5, 2)),
    Script(
        "a whole answer with everything that may be null",
        "docs.vllm.ai, the Chat API: the fields of vLLM's own",
        s.sized(
            s.completion(service_tier=None, system_fingerprint=None, prompt_logprobs=None, kv_transfer_params=None)
        ),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "a whole answer without content, since its tokens went into reasoning",
        "docs.vllm.ai, reasoning outputs: content is null when max_tokens is reached before",
        s.sized(s.completion(None, "length")),
        "",
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "embeddings",
        "docs.vllm.ai, the Embeddings API",
        s.sized(
            s.dumped(
                {
                    "id": "embd-1",
                    "object": "list",
                    "created": 1,
                    "model": s.MODEL,
                    "data": [{"index": 0, "object": "embedding", "embedding": [0.1, -1e-30, 3]}],
                    "usage": {
                        "prompt_tokens": 5,
                        "total_tokens": 5,
                        "completion_tokens": 0,
                        "prompt_tokens_details": None,
                    },
                }
            )
        ),
        None,
        s.EMBEDDINGS,
        stream=False,
    ),
    Script(
        "embeddings with NaN, which is no JSON",
        "Python's json writes NaN; engines with a broken model return it",
        s.sized(
            b'{"object":"list","model":"emulated","data":[{"index":0,"object":"embedding","embedding":[NaN,1.0]}],'
            b'"usage":{"prompt_tokens":5,"total_tokens":5}}'
        ),
        None,
        s.EMBEDDINGS,
        stream=False,
    ),
    # ---- failures
    Script(
        "too many tokens: 400 with a number as its code",
        "vllm-project/vllm#37011: type BadRequestError and code 400",
        s.sized(s.dumped(_error(400, "BadRequestError", "maximum context length is 10")), status="400 Bad Request"),
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "too many tokens: 413",
        "vllm-project/vllm#34721: proposes 413 for what exceeds the context",
        s.sized(s.dumped(_error(413, "ContentTooLarge")), status="413 Request Entity Too Large"),
        ends=Ends.REFUSED,
        status=413,
    ),
    Script(
        "400 without a body",
        "huggingface/chat-ui#1343: status 400 and no body",
        s.sized(b"", status="400 Bad Request"),
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "the model is not there: 404",
        "docs.vllm.ai: NotFoundError",
        s.sized(s.dumped(_error(404, "NotFoundError", "The model `x` does not exist.")), status="404 Not Found"),
        ends=Ends.REFUSED,
        status=404,
        fault=None,
    ),
    Script(
        "after SIGTERM: 500 to whoever comes new",
        "vllm-project/vllm, shutdown: the executor takes no new futures",
        s.sized(
            s.dumped(_error(500, "InternalServerError", "cannot schedule new futures after shutdown")),
            status="500 Internal Server Error",
        ),
        ends=Ends.REFUSED,
        status=502,
        fault=True,
        elsewhere=True,
    ),
    Script(
        "500 in plain text",
        "vllm-project/vllm#5827: Internal Server Error, as Starlette writes it",
        s.sized(b"Internal Server Error", content_type="text/plain; charset=utf-8", status="500 Internal Server Error"),
        ends=Ends.REFUSED,
        status=502,
        fault=True,
    ),
    Script(
        "busy, told in an event of a 200",
        "vllm --max-num-queued-reqs: an error of code 503 in a stream that has begun",
        s.chunked(s.data(_error(503, "Service Unavailable")), s.DONE),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    Script(
        "too many tokens, told in an event of a 200",
        "langgenius/dify-plugin-sdks#74: a context overflow with status 200",
        s.chunked(s.data(_error(400, "BadRequestError", "maximum context length is 10")), s.DONE),
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "a failure after the first tokens, and [DONE]",
        "vllm-project/vllm: an error event of code 500, then [DONE]",
        s.chunked(s.ROLE, s.HI, s.data(_error(500, "InternalServerError", "EngineCore died")), s.DONE),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "killed in the middle of a stream",
        "vllm-project/vllm: the process is killed; uvicorn closes without the last chunk",
        s.chunked(s.ROLE, s.HI, s.THERE, last=b""),
        s.TEXT,
        then=Then.CLOSE,
        ends=Ends.BROKEN,
        fault=True,
    ),
)
