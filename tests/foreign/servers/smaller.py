"""Smaller engines: text-generation-webui, KoboldCpp, LMDeploy, mistral.rs, transformers serve, LocalAI, ..."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script, Then

_ZERO: Final = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}

SCRIPTS: Final = (
    Script(
        "text-generation-webui: CR LF, pings as comments, usage with the end, no [DONE]",
        "sse-starlette: `: ping` with a date every 15 s, lines that end with CR LF",
        s.chunked(
            *(
                event.replace(b"\n", b"\r\n")
                for event in (
                    s.HI,
                    b": ping - 2025-01-01 00:00:00.000000+00:00\n\n",
                    s.THERE,
                    s.data(s.spoken("", "stop") | {"usage": s.USED}),
                )
            )
        ),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "text-generation-webui: created as a fraction",
        "BerriAI/litellm#476: `created` of 1695869575.316254",
        s.sized(s.completion(created=1695869575.316254)),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "KoboldCpp: every event is named message",
        "LostRuins/lite.koboldai.net#213: `event: message` before each data",
        s.chunked(*(b"event: message\n" + event for event in (s.HI, s.THERE, s.STOP, s.DONE))),
        s.TEXT,
    ),
    Script(
        "KoboldCpp: its own API's events",
        "LostRuins/lite.koboldai.net#213: token and finish_reason on the top level",
        s.chunked(*(s.named("message", {"token": t, "finish_reason": f}) for t, f in (("Hi", None), ("", "stop")))),
        None,
        ends=Ends.EITHER,
    ),
    Script(
        "LMDeploy: an error with a text as its body",
        "FastAPI's text for what is raised",
        s.sized(b"Internal Server Error", content_type="text/plain", status="500 Internal Server Error"),
        ends=Ends.REFUSED,
        status=502,
        fault=True,
    ),
    Script(
        "LocalAI: usage of zeros in each chunk",
        "mudler/LocalAI#1744: no finish_reason before the last chunk, usage of zeros",
        s.chunked(
            *(
                s.data(
                    {
                        "created": 1,
                        "object": "chat.completion.chunk",
                        "id": "c",
                        "model": s.MODEL,
                        "usage": _ZERO,
                        "choices": [{"index": 0, "delta": {"content": t}}],
                    }
                )
                for t in ("", "Hi", " there")
            ),
            s.data(s.spoken(finish="stop") | {"usage": s.USED}),
            s.DONE,
        ),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "mistral.rs: an error as plain text in data, and then nothing",
        "EricLBuehler/mistral.rs#1874: the stream stays open after its error",
        s.chunked(b"data: Number of choices must be greater than 0.\n\n", last=b""),
        then=Then.SILENCE,
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "mistral.rs: no [DONE]",
        "EricLBuehler/mistral.rs#1226: [DONE] was added later",
        s.chunked(s.HI, s.say(" there", "stop")),
        s.TEXT,
    ),
    Script(
        "MLC-LLM: no [DONE]",
        "mlc-ai/mlc-llm#1300: the stream ends with the connection",
        s.unframed(s.HI, s.THERE, s.STOP),
        s.TEXT,
        then=Then.CLOSE,
    ),
    Script(
        "transformers serve: usage with the finish_reason, no [DONE]",
        "huggingface/transformers#39155: the chat stream of transformers serve",
        s.chunked(s.ROLE, s.HI, s.THERE, s.data(s.spoken(finish="stop") | {"usage": s.USED})),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "LightLLM: a role in each chunk, no [DONE]",
        "ModelTC/LightLLM#1262: role assistant in all deltas, [DONE] missing",
        s.chunked(
            s.say("Hi", role="assistant"), s.say(" there", role="assistant"), s.say(finish="stop", role="assistant")
        ),
        s.TEXT,
    ),
    Script(
        "ktransformers: filter results, usage and the end in one chunk",
        "kvcache-ai/ktransformers#532: content_filter_results beside the finish_reason",
        s.chunked(
            s.HI,
            s.data(
                {
                    **s.spoken(" there"),
                    "usage": s.USED,
                    "system_fingerprint": "",
                    "choices": [
                        {
                            "index": 0,
                            "delta": {"content": " there", "reasoning_content": None},
                            "finish_reason": "stop",
                            "content_filter_results": {"hate": {"filtered": False}},
                        }
                    ],
                }
            ),
            s.DONE,
        ),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "Aphrodite: usage null everywhere",
        "aphrodite-engine/aphrodite-engine, openai protocol: usage is optional and null",
        s.chunked(*(s.data(s.spoken(t, f) | {"usage": None}) for t, f in (("Hi", None), (" there", "stop"))), s.DONE),
        s.TEXT,
    ),
    Script(
        "easyllm: tokens with a fraction",
        "philschmid/easyllm#42: completion_tokens of 37.25",
        s.sized(s.completion(usage={"prompt_tokens": 5, "completion_tokens": 2.25, "total_tokens": 7.25})),
        s.TEXT,
        stream=False,
    ),
    Script(
        "FastDeploy: no total in usage",
        "PaddlePaddle/FastDeploy#3247: total_tokens is missing in a stream",
        s.chunked(s.HI, s.THERE, s.STOP, s.usage({"prompt_tokens": 5, "completion_tokens": 2}), s.DONE),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "llamafile: the reason with the last text, a status line without words",
        "RFC 9112, 4: the reason phrase may be empty",
        s.head(s.SSE, s.CHUNKED, status="200 ")
        + s.chunk(s.HI)
        + s.chunk(s.say(" there", "stop"))
        + s.chunk(s.DONE)
        + s.LAST,
        s.TEXT,
    ),
)
