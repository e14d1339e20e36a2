"""LiteLLM's proxy and other gateways in the place of a replica."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script, Then

_BAD_GATEWAY: Final = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>\r\n"

SCRIPTS: Final = (
    Script(
        "chunks without finish_reason, and without an index in the delta",
        "BerriAI/liteLLM-proxy#19: finish_reason is left out where it is null",
        s.chunked(
            *(
                s.data(
                    {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": t}}]}
                )
                for t in ("Hi", " there")
            ),
            s.STOP,
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "usage {} in every chunk",
        "BerriAI/litellm#1371: Mistral's usage came as an empty object",
        s.chunked(*(s.data(s.spoken(t) | {"usage": {}}) for t in ("Hi", " there")), s.STOP, s.usage(), s.DONE),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "the index of the only choice is 1",
        "BerriAI/litellm#376: a stream whose choice has index 1",
        s.chunked(s.say("Hi", index=1), s.say(" there", index=1), s.say("", "stop", index=1), s.DONE),
        s.TEXT,
    ),
    Script(
        "the first event is an error, with a traceback and code as text",
        "BerriAI/litellm#5175: an error of code 500 in a 200",
        s.chunked(
            s.data(
                {
                    "error": {
                        "message": "litellm.APIConnectionError: x\nTraceback",
                        "type": None,
                        "param": None,
                        "code": "500",
                    }
                }
            )
        ),
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "an error in the middle, no [DONE]",
        "BerriAI/litellm#39748: an error frame and never [DONE]",
        s.chunked(s.HI, s.data({"error": {"message": "x", "type": "None", "param": "None", "code": "500"}})),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "cut in the middle without a word",
        "BerriAI/litellm#39748: the connection drops, no error frame, no last chunk",
        s.chunked(s.HI, s.THERE, last=b""),
        s.TEXT,
        then=Then.CLOSE,
        ends=Ends.BROKEN,
        fault=True,
    ),
    Script(
        "a message that is well formed and empty",
        "BerriAI/litellm#32086: message_start, message_delta, message_stop and nothing between",
        s.chunked(
            s.typed(
                "message_start",
                message={
                    "id": "m",
                    "type": "message",
                    "role": "assistant",
                    "model": s.MODEL,
                    "content": [],
                    "stop_reason": None,
                    "usage": {"input_tokens": 0, "output_tokens": 0},
                },
            ),
            s.typed(
                "message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 0}
            ),
            s.typed("message_stop"),
        ),
        "",
        s.MESSAGES,
    ),
    Script(
        "nginx in front, its replica down: 502 in HTML",
        "Portkey-AI/gateway#1305: 502 Bad Gateway as a page",
        s.sized(_BAD_GATEWAY, content_type="text/html", status="502 Bad Gateway"),
        ends=Ends.REFUSED,
        status=502,
        fault=True,
    ),
    Script(
        "a length and chunks at once",
        "Portkey-AI/gateway#1305: Content-Length and Transfer-Encoding in one head",
        s.head(s.JSON, "content-length: 10", s.CHUNKED) + s.chunk(s.completion()) + s.LAST,
        stream=False,
        ends=Ends.REFUSED,
        status=502,
        fault=None,
    ),
    Script(
        "504 in HTML",
        "nginx, proxy_read_timeout: 504 Gateway Time-out as a page",
        s.sized(
            _BAD_GATEWAY.replace(b"502 Bad Gateway", b"504 Gateway Time-out"),
            content_type="text/html",
            status="504 Gateway Time-out",
        ),
        ends=Ends.REFUSED,
        status=502,
        fault=True,
    ),
    Script(
        "503 in HTML",
        "HAProxy: 503 Service Unavailable as a page",
        s.sized(_BAD_GATEWAY, content_type="text/html", status="503 Service Unavailable"),
        ends=Ends.REFUSED,
        status=503,
        elsewhere=True,
    ),
    Script(
        "a page of HTML with status 200",
        "captive portals and default hosts of nginx answer anything with a page",
        s.sized(b"<!DOCTYPE html><html><body>Welcome to nginx!</body></html>", content_type="text/html"),
        None,
    ),
    Script(
        "moved: 301",
        "RFC 9110, 15.4.2: a proxy that wants https",
        s.sized(b"", "location: https://other/", content_type=None, status="301 Moved Permanently"),
        ends=Ends.REFUSED,
        status=502,
        fault=None,
    ),
    Script(
        "moved for now: 307 to a path with a slash",
        "Starlette, redirect_slashes: 307",
        s.sized(b"", "location: /v1/chat/completions/", content_type=None, status="307 Temporary Redirect"),
        ends=Ends.REFUSED,
        status=502,
        fault=None,
    ),
    Script(
        "comments sent as data",
        "mnfst/llm-gateway#2053: a keep-alive comment wrapped in a data field",
        s.chunked(b"data: : OPENROUTER PROCESSING\n\n", s.HI, s.THERE, s.STOP, s.DONE),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "two events become one line",
        "1jehuang/jcode#609: the blank line between two events is lost",
        s.chunked(s.HI, s.say("a")[:-2] + s.say("b"), s.THERE, s.STOP, s.DONE),
        None,
        assembled=Ends.EITHER,
    ),
    Script(
        "one object over two events",
        "1jehuang/jcode#609: an object split by a blank line and another data field",
        s.chunked(s.HI, s.say("a")[:60] + b"\n\ndata: " + s.say("a")[60:], s.THERE, s.STOP, s.DONE),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "compressed although nobody asked for it",
        "Anionex/agent-vision-toolkit#36: proxies that always answer in gzip",
        s.sized(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xabVJ\x05\x00", "content-encoding: gzip"),
        None,
        stream=False,
    ),
    Script(
        "an error compressed without a word about it",
        "apache/trafficcontrol#1737: gzip without Content-Encoding",
        s.sized(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xabVJ\x05\x00", status="400 Bad Request"),
        ends=Ends.REFUSED,
        status=400,
    ),
)
