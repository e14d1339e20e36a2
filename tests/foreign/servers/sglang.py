"""SGLang."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script


def _chunk(content: object = None, finish: object = None, matched: object = None, **fields: object) -> bytes:
    delta = {"role": None, "content": content, "reasoning_content": None, "tool_calls": None, **fields}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": matched}
    return s.data({**s.spoken(), "choices": [choice], "usage": None})


SCRIPTS: Final = (
    Script(
        "every field of the delta there, as null",
        "sgl-project/sglang#4550: role, tool_calls and reasoning_content are null in each delta",
        s.chunked(
            _chunk("", role="assistant"), _chunk("Hi"), _chunk(" there"), _chunk(None, "stop", 2), s.usage(), s.DONE
        ),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        'finish_reason "" until the end',
        "sgl-project/sglang#3912: the empty string where null belongs",
        s.chunked(_chunk("Hi", ""), _chunk(" there", ""), _chunk("", "stop"), s.DONE),
        s.TEXT,
    ),
    Script(
        'finish_reason "" to the end, then [DONE]',
        "sgl-project/sglang#3912: the empty string where null belongs",
        s.chunked(_chunk("Hi", ""), _chunk(" there", ""), _chunk("", ""), s.DONE),
        s.TEXT,
    ),
    Script(
        "finish_reason null to the end, then [DONE]",
        "sgl-project/sglang#4550: no stop is ever said",
        s.chunked(_chunk("Hi"), _chunk(" there"), s.usage(), s.DONE),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "finish_reason twice",
        "sgl-project/sglang#8417: with the last content, and again in a chunk of its own",
        s.chunked(_chunk("Hi"), _chunk(" there", "stop"), _chunk(None, "stop"), s.usage(), s.DONE),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "of two choices only the last one ends",
        "sgl-project/sglang#8417: with n > 1 the finish_reason is sent for the last index only",
        s.chunked(s.say("Hi", index=0), s.say("Ho", index=1), s.say("", "stop", index=1), s.DONE),
        None,
        choices=2,
    ),
    Script(
        "aborted by the scheduler in the first chunk",
        "sgl-project/sglang#19357: a terminal chunk with finish_reason abort in a stream",
        s.chunked(_chunk("", "abort"), s.DONE),
        "",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "a full queue, told in an event of a 200",
        "sgl-project/sglang#31802: the status of an abort cannot be sent once a stream has begun",
        s.chunked(
            s.data(
                {"error": {"object": "error", "message": "The request queue is full.", "type": "abort", "code": 503}}
            ),
            s.DONE,
        ),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    Script(
        "a full queue: 503",
        "sgl-project/sglang#33858: --max-queued-requests",
        s.sized(
            s.dumped({"object": "error", "message": "The request queue is full.", "type": "abort", "code": 503}),
            status="503 Service Unavailable",
        ),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    Script(
        "an error that is the body itself, not inside `error`",
        "sgl-project/sglang#2956: object error, with message, type and code on the top level",
        s.sized(
            s.dumped({"object": "error", "message": "too long", "type": "BadRequestError", "param": None, "code": 400}),
            status="400 Bad Request",
        ),
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "such an error with status 200",
        "sgl-project/sglang#12081: the status is 200 and the code 400; #2956: the fields on the top level",
        s.sized(
            s.dumped({"object": "error", "message": "too long", "type": "BadRequestError", "param": None, "code": 400})
        ),
        stream=False,
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "such an error with status 200 for embeddings",
        "sgl-project/sglang#2956: object error, with message, type and code on the top level",
        s.sized(s.dumped({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400})),
        path=s.EMBEDDINGS,
        stream=False,
        ends=Ends.REFUSED,
        status=400,
    ),
    Script(
        "such an error in the middle of a stream",
        "sgl-project/sglang#2956: object error, with message, type and code on the top level",
        s.chunked(
            _chunk("Hello"),
            s.data({"object": "error", "message": "out of memory", "type": "InternalServerError", "code": 500}),
            s.DONE,
        ),
        "Hello",
        ends=Ends.BROKEN,
        fault=True,
    ),
    Script(
        "a whole answer with what it stopped at",
        "sgl-project/sglang#3912: matched_stop",
        s.sized(s.completion(metadata={"weight_version": "default"})),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "a tool call without an end of its own",
        "sgl-project/sglang#8417: finish_reason stop although tools are called",
        s.chunked(
            _chunk(
                None,
                tool_calls=[
                    {"id": "call_1", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            ),
            _chunk(None, "stop"),
            s.DONE,
        ),
    ),
)
