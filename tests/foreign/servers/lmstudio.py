"""LM Studio."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script

SCRIPTS: Final = (
    Script(
        "no usage, even though it was asked for",
        "lmstudio-ai/lmstudio-js#320: streams came without usage",
        s.chunked(s.say("Hi", role="assistant"), s.say(" there", role="assistant"), s.STOP, s.DONE),
        s.TEXT,
    ),
    Script(
        "an error event beside its message",
        "zendev-sh/goai#110: an error object and the message again, without a type",
        s.chunked(s.HI, s.named("error", {"error": {"message": "Compute error."}, "message": "Compute error."})),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "an error event before the first token",
        "zendev-sh/goai#110: an error object and the message again, without a type",
        s.chunked(s.named("error", {"error": {"message": "Compute error."}, "message": "Compute error."})),
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "200 for a path that it does not know",
        "lmstudio-ai/lmstudio-bug-tracker#1879: unexpected endpoints get an error with status 200",
        s.sized(s.dumped({"error": "Unexpected endpoint or method. (POST /v1/x)"})),
        ends=Ends.EITHER,
        fault=None,
    ),
    Script(
        "statistics of its own",
        "lmstudio-ai/lmstudio-js#320: `stats` beside usage",
        s.sized(
            s.completion(stats={"tokens_per_second": 51.43, "time_to_first_token": 0.111}, model_info={"quant": "Q4"})
        ),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "no model is loaded: 404",
        "canopyai/Orpheus-TTS#229: no models loaded, with status 404",
        s.sized(
            s.dumped(
                {"error": {"message": "No models loaded.", "type": "invalid_request_error", "code": "model_not_found"}}
            ),
            status="404 Not Found",
        ),
        ends=Ends.REFUSED,
        status=404,
        fault=None,
    ),
)
