"""Hosted APIs and the styles that others took from them: OpenAI, Azure, OpenRouter, and similar ones."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script

_FILTER: Final = {"hate": {"filtered": False, "severity": "safe"}, "violence": {"filtered": False, "severity": "safe"}}

SCRIPTS: Final = (
    Script(
        "Azure: a first chunk without choices, for the filter of prompts",
        "AbanteAI/archive-old-cli-mentat#429: choices empty, id and model empty strings",
        s.chunked(
            s.data(
                {
                    "id": "",
                    "choices": [],
                    "created": 0,
                    "model": "",
                    "object": "",
                    "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": _FILTER}],
                }
            ),
            s.ROLE,
            s.HI,
            s.THERE,
            s.STOP,
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "Azure: choices without a delta after the end",
        "microsoft/autogen#6465: a late chunk with content_filter_offsets and no delta",
        s.chunked(
            s.HI,
            s.THERE,
            s.STOP,
            s.data(
                {
                    "id": "",
                    "choices": [
                        {
                            "finish_reason": None,
                            "index": 0,
                            "content_filter_results": _FILTER,
                            "content_filter_offsets": {"check_offset": 3329},
                        }
                    ],
                    "created": 0,
                    "model": "",
                }
            ),
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "OpenRouter: comments while it waits",
        "openai/openai-go#227: `: OPENROUTER PROCESSING` before the first event",
        s.chunked(
            b": OPENROUTER PROCESSING\n\n", b": OPENROUTER PROCESSING\n\n", s.ROLE, s.HI, s.THERE, s.STOP, s.DONE
        ),
        s.TEXT,
    ),
    Script(
        "OpenRouter: a comment in the same chunk as the first token",
        "openai/openai-go#227: `: OPENROUTER PROCESSING` before the first event",
        s.chunked(b": OPENROUTER PROCESSING\n\n" + s.HI, s.THERE + b": OPENROUTER PROCESSING\n\n", s.STOP, s.DONE),
        s.TEXT,
    ),
    Script(
        "OpenRouter: an error in the middle, with finish_reason error",
        "langchain-ai/langchainjs#11579: an error with a text as its code, status 200",
        s.chunked(
            s.HI,
            s.data(s.spoken("", "error") | {"error": {"code": "server_error", "message": "Provider disconnected"}}),
        ),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "DeepSeek: usage with the last choice, no chunk of its own",
        "api-docs.deepseek.com: usage rides on the chunk with the finish_reason",
        s.chunked(s.HI, s.THERE, s.data(s.spoken("", "stop") | {"usage": s.USED}), s.DONE),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "Perplexity: the whole text again in each chunk, no [DONE]",
        "perplexityai/api-discussion#209: message.content grows beside delta",
        s.chunked(
            *(
                s.data(
                    {
                        **s.spoken(),
                        "choices": [
                            {
                                "index": 0,
                                "delta": {"content": t},
                                "finish_reason": f,
                                "message": {"role": "assistant", "content": w},
                            }
                        ],
                    }
                )
                for t, w, f in (("Hi", "Hi", None), (" there", "Hi there", "stop"))
            )
        ),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "Gemini: finishReason beside a finish_reason that stays null, no [DONE]",
        "jakobdylanc/llmcord#84: only finishReason has the reason",
        s.chunked(
            s.HI,
            s.data(
                {
                    **s.spoken(),
                    "choices": [
                        {"index": 0, "delta": {"content": " there"}, "finish_reason": None, "finishReason": "stop"}
                    ],
                }
            ),
        ),
        s.TEXT,
        ends=Ends.BROKEN,
    ),
    Script(
        "opencode zen: neither a finish_reason nor [DONE], costs at the end",
        "anomalyco/opencode#43379: chunks without choices, then cost",
        s.chunked(s.HI, s.data({**s.spoken(), "choices": []}), s.usage(), s.data({"choices": [], "cost": "0"})),
        "Hi",
        ends=Ends.BROKEN,
    ),
    Script(
        'MiniMax: a role "" in each delta, a total and nothing else in usage',
        "MiniMax-AI/MiniMax-M2.5#2: role is the empty string, usage has total_tokens and total_characters",
        s.chunked(
            *(
                s.data(
                    s.spoken(text, role="", reasoning_content="")
                    | {"usage": {"total_tokens": 0, "total_characters": 0}}
                )
                for text in ("Hi", " there")
            ),
            s.STOP,
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "a line separator in the text, unescaped",
        "openai/openai-python#1230: U+2028 in the text; no end of a line in event streams",
        s.chunked(s.say("Hi\u2028"), s.say("\u2029\x85"), s.STOP, s.DONE),
        "Hi\u2028\u2029\x85",
    ),
    Script(
        "OpenAI: an obfuscation field in each chunk",
        "platform.openai.com, stream_options.include_obfuscation",
        s.chunked(
            *(s.data(s.spoken(t) | {"obfuscation": "aX9", "service_tier": "default"}) for t in ("Hi", " there")),
            s.STOP,
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "a whole answer with a refusal and annotations",
        "platform.openai.com, the chat completion object",
        s.sized(
            s.completion(
                choices=[
                    {
                        "index": 0,
                        "finish_reason": "content_filter",
                        "message": {"role": "assistant", "content": None, "refusal": "No.", "annotations": []},
                    }
                ]
            )
        ),
        "",
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "529 of a service that is overloaded",
        "anthropics/anthropic-sdk-typescript#616: status 529, overloaded_error",
        s.sized(
            s.dumped({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
            status="529 Overloaded",
        ),
        path=s.MESSAGES,
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    Script(
        "429 with a time to try again",
        "platform.openai.com, rate limits: Retry-After",
        s.sized(
            s.dumped(
                {
                    "error": {
                        "message": "Rate limit reached",
                        "type": "requests",
                        "param": None,
                        "code": "rate_limit_exceeded",
                    }
                }
            ),
            "retry-after: 2",
            status="429 Too Many Requests",
        ),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    Script(
        "401: the gateway's own key is wrong",
        "platform.openai.com, error codes: 401",
        s.sized(s.dumped({"error": "Unauthorized"}), "www-authenticate: Bearer", status="401 Unauthorized"),
        ends=Ends.REFUSED,
        status=502,
        fault=None,
    ),
)
