"""TensorRT-LLM's trtllm-serve, and Triton's OpenAI frontend."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script

SCRIPTS: Final = (
    Script(
        "fields of the delta as null, stop_reason beside finish_reason",
        "NVIDIA/TensorRT-LLM#3280: chunks of trtllm-serve",
        s.chunked(
            s.say("Hi", role=None, tool_calls=None),
            s.say(" there", role=None, tool_calls=None),
            s.data(
                {
                    **s.spoken(),
                    "choices": [
                        {
                            "index": 0,
                            "delta": {"content": "", "tool_calls": []},
                            "logprobs": None,
                            "finish_reason": "stop",
                            "stop_reason": None,
                        }
                    ],
                }
            ),
            s.usage(),
            s.DONE,
        ),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "the first content is null",
        "triton-inference-server/perf_analyzer#386: content null with the role",
        s.chunked(s.say(content=None, role="assistant"), s.say("Hi there", role=None), s.STOP, s.DONE),
        s.TEXT,
    ),
    Script(
        "comments that are nothing but a colon, in the middle",
        "triton-inference-server/triton_distributed#264: `:` and a blank line under load",
        s.chunked(s.HI, b":\n\n", s.THERE, b":\n\n", s.STOP, s.DONE),
        s.TEXT,
    ),
    Script(
        "a token that is half a character",
        "NVIDIA/TensorRT-LLM#2544: characters of several tokens come out as U+FFFD",
        s.chunked(s.say("Hi"), s.say("\ufffd"), s.STOP, s.DONE),
        "Hi\ufffd",
    ),
    Script(
        "whole answers and nothing in them",
        "triton-inference-server/server#7724: content is the empty string",
        s.sized(s.completion("")),
        "",
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "an error as `detail`",
        "FastAPI, which Triton's frontend is built on: HTTPException has `detail`",
        s.sized(s.dumped({"detail": "Unknown model: x"}), status="400 Bad Request"),
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "an error whose detail is a list",
        "FastAPI: RequestValidationError has a list of what is wrong where",
        s.sized(
            s.dumped({"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {}}]}),
            status="422 Unprocessable Entity",
        ),
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "the same usage in every chunk of a text completion",
        "NVIDIA/TensorRT-LLM, openai_protocol: usage may stand in each chunk",
        s.chunked(
            *(
                s.data(
                    {
                        "id": "c",
                        "object": "text_completion",
                        "created": 1,
                        "model": s.MODEL,
                        "usage": s.USED,
                        "choices": [{"index": 0, "text": t, "finish_reason": f}],
                    }
                )
                for t, f in (("Hi", None), (" there", None), ("", "length"))
            ),
            s.DONE,
        ),
        s.TEXT,
        s.COMPLETIONS,
        usage=(5, 2),
    ),
)
