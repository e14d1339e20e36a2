"""MLX servers: mlx_lm.server, vllm-mlx."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script, Then

_EVENTS: Final = (s.HI, s.THERE, s.say("", "stop"), s.DONE)

SCRIPTS: Final = (
    Script(
        "HTTP/1.0, to the end of the connection",
        "Python's http.server, which mlx_lm.server is built on, speaks HTTP/1.0",
        s.unframed(*_EVENTS, version="HTTP/1.0"),
        s.TEXT,
        then=Then.CLOSE,
    ),
    Script(
        "HTTP/1.0 without a Connection line",
        "Python's http.server, which mlx_lm.server is built on, speaks HTTP/1.0",
        s.head(s.SSE, version="HTTP/1.0") + b"".join(_EVENTS),
        s.TEXT,
        then=Then.CLOSE,
    ),
    Script(
        "HTTP/1.0 that ends without any mark",
        "Python's http.server: the end of the connection is all that there is",
        s.unframed(*_EVENTS[:2], version="HTTP/1.0"),
        s.TEXT,
        then=Then.CLOSE,
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "HTTP/1.0, reset in the middle",
        "Python's http.server: the process is killed",
        s.unframed(*_EVENTS[:2], version="HTTP/1.0"),
        s.TEXT,
        then=Then.RESET,
        ends=Ends.BROKEN,
        fault=True,
    ),
    Script(
        "natural stops without a finish_reason",
        "waybarrios/vllm-mlx#628: null, then [DONE]",
        s.chunked(s.ROLE, s.HI, s.THERE, s.say(""), s.DONE),
        s.TEXT,
    ),
    Script(
        "progress of the prompt in comments",
        "ml-explore/mlx-lm#362: comments with how much of the prompt is processed",
        s.chunked(b": keepalive 1024/4096\n\n", b": keepalive 4096/4096\n\n", *_EVENTS),
        s.TEXT,
    ),
    Script(
        "HTTP/1.0, a whole answer to the end",
        "Python's http.server, which mlx_lm.server is built on, speaks HTTP/1.0",
        s.unframed(s.completion(), content_type=s.JSON, version="HTTP/1.0"),
        s.TEXT,
        stream=False,
        then=Then.CLOSE,
        usage=(5, 2),
    ),
    Script(
        "HTTP/1.0 with a length and kept alive",
        "RFC 9112, 9.3: keep-alive of HTTP/1.0",
        s.head(s.JSON, f"content-length: {len(s.completion())}", "connection: keep-alive", version="HTTP/1.0")
        + s.completion(),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "404 with no more than a word",
        "Python's http.server: Not Found as text, without a length",
        s.unframed(b"Not Found", content_type="text/html", version="HTTP/1.0").replace(b"200 OK", b"404 Not Found"),
        then=Then.CLOSE,
        ends=Ends.REFUSED,
        status=404,
        fault=None,
    ),
)
