"""Receivers of OTLP, over HTTP and over gRPC."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest

from .receiver import REQUESTS, SERVICES, Receiver


@pytest.fixture(params=["http/protobuf", "grpc"])
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    """Each test runs with both."""
    with http_receiver() if request.param == "http/protobuf" else grpc_receiver() as found:
        found.environment["OTEL_EXPORTER_OTLP_PROTOCOL"] = request.param
        yield found


class http_receiver:
    """A receiver on a port of its own."""

    def __enter__(self) -> Receiver:
        found = Receiver()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                is_taken = found.takes(self.path, body, {name.lower(): value for name, value in self.headers.items()})
                self.send_response(200 if is_taken else 503 if found.is_away else 400)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        found.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{self._server.server_port}"
        return found

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class grpc_receiver:
    """The same over gRPC. `port`: 0 takes a free one."""

    def __init__(self, port: int = 0) -> None:
        self._port = port

    def __enter__(self) -> Receiver:
        found = Receiver()

        def answer(path: str, body: bytes, context: grpc.ServicerContext) -> bytes:
            if not found.takes(path, body, dict(context.invocation_metadata())):
                code = grpc.StatusCode.UNAVAILABLE if found.is_away else grpc.StatusCode.INVALID_ARGUMENT
                context.abort(code, "not now")
            return b""

        self._server = grpc.server(ThreadPoolExecutor(2))
        for path in REQUESTS:
            service, method = SERVICES[path].strip("/").split("/")
            handler = grpc.unary_unary_rpc_method_handler(lambda body, context, path=path: answer(path, body, context))
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self._server.start()
        found.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
        return found

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
