"""Text Generation Inference."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script


def _tight(*events: bytes) -> list[bytes]:
    """Without the space after the colon, as axum writes events."""
    return [event.replace(b"data: ", b"data:") for event in events]


_OVERLOADED: Final = {"error": "Model is overloaded", "error_type": "overloaded"}
_INVALID: Final = {"error": "`inputs` tokens + `max_new_tokens` must be <= 2048", "error_type": "validation"}
_FAILED: Final = {"error": "Request failed during generation: CUDA out of memory", "error_type": "generation"}

SCRIPTS: Final = (
    Script(
        "data without a blank after the colon",
        "openai/openai-python#498: `data:` with and without a blank are the same",
        s.chunked(*_tight(s.ROLE, s.HI, s.THERE, s.STOP, s.usage(), s.DONE)),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "a stream without [DONE]",
        "huggingface/text-generation-inference#2221: older versions never send it",
        s.chunked(*_tight(s.ROLE, s.HI, s.THERE, s.STOP)),
        s.TEXT,
    ),
    Script(
        "eos_token as the finish_reason",
        "huggingface/text-generation-inference#2466: eos_token where others say stop",
        s.chunked(*_tight(s.HI, s.say(" there", "eos_token"), s.DONE)),
        s.TEXT,
    ),
    Script(
        "a comment every few seconds",
        "axum's KeepAlive: an empty comment line while nothing is generated",
        s.chunked(b":\n\n", b":\n\n", *_tight(s.HI, s.THERE, s.STOP, s.DONE)),
        s.TEXT,
    ),
    Script(
        "a failure in the stream, its error a string",
        "huggingface/text-generation-inference#36: an event with `error` as a string",
        s.chunked(*_tight(s.HI, s.data(_FAILED))),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "a validation error in a 200, its error a string",
        "huggingface/text-generation-inference#2749: validation errors come with status 200",
        s.chunked(*_tight(s.data(_INVALID), s.DONE)),
        ends=Ends.EITHER,
        fault=None,
    ),
    Script(
        "overloaded: 429 with a string as its error",
        "huggingface.co/docs/text-generation-inference: 429 Model is overloaded",
        s.sized(s.dumped(_OVERLOADED), status="429 Too Many Requests"),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    Script(
        "invalid: 422",
        "huggingface.co/docs/text-generation-inference: 422 Input validation error",
        s.sized(s.dumped(_INVALID), status="422 Unprocessable Entity"),
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "failed while generating: 424",
        "huggingface.co/docs/text-generation-inference: 424 Request failed during generation",
        s.sized(s.dumped(_FAILED), status="424 Failed Dependency"),
        ends=Ends.REFUSED,
        status=502,
        fault=None,
    ),
    Script(
        "a whole answer, its id empty",
        "huggingface.co/docs/text-generation-inference, Messages API: id is the empty string",
        s.sized(s.completion(id="", system_fingerprint="3.0.0-native")),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "its own API's events under the chat path",
        "huggingface/text-generation-inference#36: token, generated_text and details",
        s.chunked(
            *_tight(
                s.data({"index": 1, "token": {"id": 1, "text": "Hi", "logprob": -0.1}, "generated_text": None}),
                s.data(
                    {
                        "index": 2,
                        "token": {"id": 2, "text": "!"},
                        "generated_text": "Hi!",
                        "details": {"finish_reason": "eos_token"},
                    }
                ),
            )
        ),
        None,
        ends=Ends.EITHER,
    ),
)
