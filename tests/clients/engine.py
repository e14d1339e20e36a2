"""A replica for chat completions, responses and messages; the prompt decides its answer."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import answers, asked

MODEL = "scripted"
BOUNDS = {"temperature": 2, "top_p": 1}
APIS = {
    "/v1/chat/completions": (asked.of_chat, answers.chat, answers.chat_events),
    "/v1/responses": (asked.of_responses, answers.responses, answers.responses_events),
    "/v1/messages": (asked.of_messages, answers.messages, answers.messages_events),
}
numbers = itertools.count(1)


class Handler(BaseHTTPRequestHandler):
    """One connection of the gateway."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def handle(self) -> None:
        """Serve until the gateway closes, or resets after an answer that failed."""
        with suppress(ConnectionResetError):
            super().handle()

    def do_GET(self) -> None:
        """The list of models, or for other paths a sign of life."""
        self._whole({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "us"}]})

    def do_POST(self) -> None:
        """An answer in the API of the path."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        too_high = [name for name, bound in BOUNDS.items() if (body.get(name) or 0) > bound]
        if too_high:
            error = {"message": f"{too_high[0]} is out of range", "type": "BadRequestError", "param": too_high[0]}
            self._whole({"error": error | {"code": 400}}, 400)
        elif self.path == "/v1/completions":
            self._whole(answers.scored(body))
        elif self.path == "/v1/embeddings":
            self._whole(answers.embeddings(body))
        elif self.path in APIS:
            read, whole, events = APIS[self.path]
            reply, number = asked.reply(read(body)), next(numbers)
            if body.get("stream"):
                every = events(body, reply, number)
                self._stream(answers.failing(self.path, every) if reply.fails else every)
            else:
                self._whole(whole(body, reply, number))
        else:
            self.send_error(404)

    def _whole(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, events: answers.Events) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for name, data in events:
            text = data if isinstance(data, str) else json.dumps(data)
            event = (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def engine() -> Iterator[str]:
    """Start an engine on a free port, in threads of its own. Yields its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
