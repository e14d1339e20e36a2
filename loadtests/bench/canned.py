"""The bytes of the bench: one chat request as the OpenAI client sends it, and vLLM's answers to it.

Every target gets the same bytes, so that a ratio between two targets compares their work and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate

MODEL = "bench-model"
KEY = "tg-bench-0123456789abcdef0123456789abcdef"
"""The API key in every request; it opens nothing but the bench's own policy."""

REQUEST_BODY_BYTES = 1200
ANSWER_BODY_BYTES = 600
PATH = "/v1/chat/completions"

_CREATED = 1_760_000_000


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _filler(count: int) -> str:
    """`count` characters of English-like text."""
    words = "the quick brown fox jumps over a lazy dog while many small models answer long questions "
    return (words * (count // len(words) + 1))[:count]


def _stretched(build: Callable[[str], object], size: int) -> bytes:
    """`build(text)`, with a text of the length that makes the result exactly `size` bytes."""
    return _compact(build(_filler(size - len(_compact(build(""))))))


def request_body(*, stream: bool, max_tokens: int = 128) -> bytes:
    """A chat request of REQUEST_BODY_BYTES bytes."""

    def build(text: str) -> dict[str, object]:
        system = {"role": "system", "content": "You are a helpful assistant. Answer briefly and name your sources."}
        body: dict[str, object] = {
            "model": MODEL,
            "messages": [system, {"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "temperature": 0.7,
        }
        return body | {"stream": True} if stream else body

    return _stretched(build, REQUEST_BODY_BYTES)


def request(host: str, *, stream: bool, max_tokens: int = 128) -> bytes:
    """The whole request, with the headers that the OpenAI Python client sends."""
    body = request_body(stream=stream, max_tokens=max_tokens)
    head = (
        f"POST {PATH} HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        "Accept-Encoding: gzip, deflate\r\n"
        "Connection: keep-alive\r\n"
        "Accept: application/json\r\n"
        "Content-Type: application/json\r\n"
        "User-Agent: AsyncOpenAI/Python 2.8.0\r\n"
        "X-Stainless-Lang: python\r\n"
        "X-Stainless-Package-Version: 2.8.0\r\n"
        "X-Stainless-OS: Linux\r\n"
        "X-Stainless-Arch: x64\r\n"
        "X-Stainless-Runtime: CPython\r\n"
        "X-Stainless-Runtime-Version: 3.11.7\r\n"
        f"Authorization: Bearer {KEY}\r\n"
        "X-Stainless-Async: async:asyncio\r\n"
        "x-stainless-retry-count: 0\r\n"
        "x-stainless-read-timeout: 600\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _answer_body() -> bytes:
    def build(text: str) -> dict[str, object]:
        message: dict[str, object] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "tool_calls": [],
            "reasoning_content": None,
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        return {
            "id": "chatcmpl-0123456789abcdef0123456789abcdef",
            "object": "chat.completion",
            "created": _CREATED,
            "model": MODEL,
            "choices": [choice],
            "usage": {
                "prompt_tokens": 270,
                "total_tokens": 318,
                "completion_tokens": 48,
                "prompt_tokens_details": None,
            },
            "prompt_logprobs": None,
        }

    return _stretched(build, ANSWER_BODY_BYTES)


def plain(status: str, content_type: str, body: bytes) -> bytes:
    """An answer with a Content-Length, headers as uvicorn writes them."""
    head = (
        f"HTTP/1.1 {status}\r\ndate: Thu, 09 Oct 2025 08:53:20 GMT\r\nserver: uvicorn\r\n"
        f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\n\r\n"
    )
    return head.encode() + body


def _frame(data: bytes) -> bytes:
    """One chunk of HTTP/1.1 chunked coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(delta: dict[str, object] | None, finish: str | None = None, usage: object = None) -> bytes:
    """One SSE event in its own chunk, as vLLM streams them."""
    choices = []
    if delta is not None:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}]
    event: dict[str, object] = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": MODEL,
        "choices": choices,
    }
    if usage is not None:
        event["usage"] = usage
    return _frame(b"data: " + _compact(event) + b"\n\n")


def usage_event(tokens: int) -> bytes:
    """The usage chunk of a stream that asked for one."""
    return _event(None, usage={"prompt_tokens": 270, "total_tokens": 270 + tokens, "completion_tokens": tokens})


ANSWER_BODY = _answer_body()
ANSWER = plain("200 OK", "application/json", ANSWER_BODY)
NOT_FOUND = plain("404 Not Found", "application/json", b'{"detail":"Not Found"}')
HEALTHY = plain("200 OK", "text/plain; charset=utf-8", b"")
MODELS = plain(
    "200 OK",
    "application/json",
    _compact(
        {
            "object": "list",
            "data": [
                {
                    "id": MODEL,
                    "object": "model",
                    "created": _CREATED,
                    "owned_by": "vllm",
                    "root": MODEL,
                    "parent": None,
                    "max_model_len": 131072,
                }
            ],
        }
    ),
)

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 09 Oct 2025 08:53:20 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_ROLE = _event({"role": "assistant", "content": ""})
STREAM_CHUNK = _event({"content": " token"})
STREAM_FINISH = _event({"content": ""}, finish="length")
STREAM_DONE = b"data: [DONE]\n\n"
STREAM_END = _frame(STREAM_DONE) + b"0\r\n\r\n"


def stream_events(chunks: int) -> int:
    """SSE events of an answer of `chunks` content chunks, for a client that asked for no usage."""
    return chunks + 3  # role, finish, [DONE]


_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "engine_sleep_state")
_COUNTERS = (
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prompt_tokens",
    "generation_tokens",
    "request_success",
    "mm_cache_queries",
    "mm_cache_hits",
)
_HISTOGRAMS = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
)
_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)


def _metrics_page() -> bytes:
    """A page as large as vLLM's, with the same contents: reading it is part of a gateway's work."""
    labels = f'engine="0",model_name="{MODEL}"'
    lines = []
    for name in _GAUGES:
        lines += [f"# HELP vllm:{name} {name}.", f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} 0.0"]
    for name in _COUNTERS:
        full = f"vllm:{name}_total"
        lines += [f"# HELP {full} {name}.", f"# TYPE {full} counter", f"{full}{{{labels}}} 1234.0"]
    for name in _HISTOGRAMS:
        lines += [f"# HELP vllm:{name} Histogram of {name}.", f"# TYPE vllm:{name} histogram"]
        for edge, count in zip(_EDGES, accumulate(range(3, 3 + len(_EDGES))), strict=True):
            lines.append(f'vllm:{name}_bucket{{{labels},le="{float(edge)}"}} {float(count)}')
        lines += [
            f'vllm:{name}_bucket{{{labels},le="+Inf"}} 300.0',
            f"vllm:{name}_count{{{labels}}} 300.0",
            f"vllm:{name}_sum{{{labels}}} 612.5",
        ]
    return "\n".join(lines).encode() + b"\n"


METRICS = plain("200 OK", "text/plain; version=0.0.4; charset=utf-8", _metrics_page())
