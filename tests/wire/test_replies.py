"""Errors for clients: statuses, headers, bodies, events."""

from __future__ import annotations

import json
import math
from http.client import HTTPResponse
from io import BytesIO
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.results import Reason
from gateway.wire.apis.messages import ANTHROPIC
from gateway.wire.apis.responses import RESPONSES
from gateway.wire.errors.reasons import ROWS
from gateway.wire.errors.replies import (
    OPENAI,
    Dialect,
    Problem,
    error_event,
    error_response,
    status_of,
    upstream_error,
)
from gateway.wire.target import dialect_of

DIALECTS = [OPENAI, RESPONSES.dialect, ANTHROPIC]
STATUSES = {
    400: "bad-request response-not-found quarantined context-length upstream-rejected",
    401: "unauthorized",
    403: "forbidden-model host-not-allowed origin-not-allowed",
    404: "not-found model-not-found",
    405: "method-not-allowed",
    408: "receive-timeout",
    413: "body-too-large",
    415: "unsupported-encoding",
    417: "expectation-failed",
    426: "no-websockets",
    429: "limit-requests limit-tokens limit-concurrency limit-quota predicted-breach queue-full evicted",
    431: "headers-too-large",
    499: "client-gone client-stalled",
    500: "internal repetition output-length",
    502: "upstream-error upstream-truncated upstream-unreadable",
    503: "receiving-full no-replicas shutting-down upstream-busy upstream-unreachable",
    504: "queue-timeout connect-timeout ttft-timeout idle-timeout total-timeout",
}


class _Socket:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, *_: object, **__: Any) -> BytesIO:
        return BytesIO(self.data)


def read(response: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of a whole response, whose length must be right."""
    parsed = HTTPResponse(cast(Any, _Socket(response + b"NEXT")))
    parsed.begin()
    headers = {name.lower(): value for name, value in parsed.getheaders()}
    assert len(headers) == len(parsed.getheaders()), "a header stands twice"
    body = parsed.read()
    assert response.endswith(body)
    return parsed.status, headers, json.loads(body)


def error_of(dialect: Dialect, problem: Problem) -> dict[str, Any]:
    """The error in the body of a response."""
    _, _, body = read(error_response(dialect, problem, "r"))
    found: dict[str, Any] = body["error"]
    return found


def test_every_reason_of_a_refusal_has_its_status() -> None:
    expected = {Reason(name): status for status, names in STATUSES.items() for name in names.split()}
    assert {why: status_of(why) for why in Reason} == expected


@pytest.mark.parametrize("why", Reason)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_reason_gives_a_complete_error_response(dialect: Dialect, why: Reason) -> None:
    status, headers, body = read(error_response(dialect, Problem(why), "req-1"))
    assert status == status_of(why)
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"] == "req-1"
    assert headers["x-tailgate-reason"] == why.value
    assert "connection" not in headers
    if dialect is not ANTHROPIC:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["code"] is None or isinstance(body["error"]["code"], str)
    else:
        assert (set(body), body["type"], body["request_id"]) == ({"type", "error", "request_id"}, "error", "req-1")
        assert set(body["error"]) == {"type", "message"}
        assert headers["request-id"] == "req-1"  # the place that Anthropic's SDK reads
    assert body["error"]["message"].endswith(".")


@pytest.mark.parametrize(
    ("why", "code"),
    [
        (Reason.BAD_REQUEST, None),
        (Reason.UNAUTHORIZED, "invalid_api_key"),
        (Reason.MODEL_NOT_FOUND, "model_not_found"),
        (Reason.CONTEXT_LENGTH, "context_length_exceeded"),
        (Reason.LIMIT_TOKENS, "rate_limit_exceeded"),
        (Reason.LIMIT_REQUESTS, "rate_limit_exceeded"),
        (Reason.LIMIT_CONCURRENCY, "rate_limit_exceeded"),
        (Reason.QUEUE_FULL, "queue_full"),
        (Reason.NO_REPLICAS, "no_replicas"),
        (Reason.TTFT_TIMEOUT, "deadline_exceeded"),
    ],
)
def test_openai_error_codes_are_those_that_clients_act_upon(why: Reason, code: str | None) -> None:
    assert error_of(OPENAI, Problem(why))["code"] == code


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        (Reason.BAD_REQUEST, "invalid_request_error"),
        (Reason.UNAUTHORIZED, "authentication_error"),
        (Reason.FORBIDDEN_MODEL, "permission_error"),
        (Reason.MODEL_NOT_FOUND, "not_found_error"),
        (Reason.BODY_TOO_LARGE, "request_too_large"),
        (Reason.LIMIT_TOKENS, "rate_limit_error"),
        (Reason.QUEUE_FULL, "rate_limit_error"),
        (Reason.NO_REPLICAS, "overloaded_error"),
        (Reason.TTFT_TIMEOUT, "timeout_error"),
        (Reason.INTERNAL, "api_error"),
    ],
)
def test_anthropic_error_types_are_those_that_clients_know(why: Reason, kind: str) -> None:
    assert error_of(ANTHROPIC, Problem(why))["type"] == kind


def test_message_of_a_problem_replaces_the_default_message() -> None:
    problem = Problem(Reason.BAD_REQUEST, "n: must be at most 4", param="n", code="integer_above_max_value")
    assert error_of(OPENAI, problem) == {
        "message": "n: must be at most 4",
        "type": "invalid_request_error",
        "param": "n",
        "code": "integer_above_max_value",
    }


# ---- retries


@pytest.mark.parametrize("why", [why for why in Reason if status_of(why) in (429, 503, 504)])
def test_overload_refusals_always_have_retry_after(why: Reason) -> None:
    _, headers, _ = read(error_response(OPENAI, Problem(why), "r"))
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "1000")


@pytest.mark.parametrize(
    ("retry_after_s", "seconds", "milliseconds"),
    [
        (0.0, "1", "1"),
        (0.0001, "1", "1"),
        (0.25, "1", "250"),
        (1.0, "1", "1000"),
        (1.0001, "2", "1001"),
        (75.5, "76", "75500"),
        (-3.0, "1", "1"),
        (math.inf, "86400", "86400000"),
        (math.nan, "86400", "86400000"),
    ],
)
def test_retry_after_is_rounded_up_and_never_zero(retry_after_s: float, seconds: str, milliseconds: str) -> None:
    problem = Problem(Reason.QUEUE_FULL, retry_after_s=retry_after_s)
    _, headers, _ = read(error_response(OPENAI, problem, "r"))
    assert (headers["retry-after"], headers["retry-after-ms"]) == (seconds, milliseconds)


def test_reasons_that_cannot_succeed_later_have_x_should_retry_false() -> None:
    final = {why for why in Reason if read(error_response(OPENAI, Problem(why), "r"))[1].get("x-should-retry")}
    assert final == {why for why in Reason if status_of(why) < 500 and status_of(why) not in (408, 429)} | {
        Reason.TOTAL_TIMEOUT,
        Reason.REPETITION,
        Reason.OUTPUT_LENGTH,
    }
    assert final == {why for why, row in ROWS.items() if not row.retry}


# ---- headers


def test_405_names_the_allowed_method() -> None:
    problem = Problem(Reason.METHOD_NOT_ALLOWED)
    assert read(error_response(OPENAI, problem, "r"))[1]["allow"] == "POST"
    problem = Problem(Reason.METHOD_NOT_ALLOWED, allow="GET")
    assert read(error_response(OPENAI, problem, "r"))[1]["allow"] == "GET"
    assert "allow" not in read(error_response(OPENAI, Problem(Reason.NOT_FOUND), "r"))[1]


def test_error_response_can_have_extra_headers_and_close_the_connection() -> None:
    extra = b"x-ratelimit-limit-requests: 60\r\n"
    _, headers, _ = read(error_response(OPENAI, Problem(Reason.LIMIT_REQUESTS), "r", extra, close=True))
    assert (headers["x-ratelimit-limit-requests"], headers["connection"]) == ("60", "close")


nasty = st.text(st.sampled_from('a\r\n\x00: \u2028\udc80é"\\{}<>'), max_size=20)


@given(dialect=st.sampled_from(DIALECTS), why=st.sampled_from(list(Reason)), text=nasty, request_id=nasty, allow=nasty)
def test_interpolated_text_cannot_end_a_header_or_an_event(
    dialect: Dialect, why: Reason, text: str, request_id: str, allow: str
) -> None:
    problem = Problem(why, text, param=text, allow=allow)
    response = error_response(dialect, problem, request_id)
    head, _, body = response.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0] for line in head.split(b"\r\n")[1:]]
    assert set(names) <= {
        *(b"content-type", b"content-length", b"x-request-id", b"request-id", b"x-tailgate-reason", b"allow"),
        *(b"retry-after", b"retry-after-ms", b"x-should-retry", b"upgrade", b"accept-encoding"),
    }
    assert len(names) == len(set(names))
    json.loads(body)
    event = error_event(dialect, problem)
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == (2 if dialect is OPENAI else 3)
    assert b"\r" not in event


@pytest.mark.parametrize(
    ("path", "anthropic_headers", "dialect"),
    [
        (b"/v1/chat/completions", False, OPENAI),
        (b"/v1/chat/completions", True, OPENAI),
        (b"/v1/messages", False, ANTHROPIC),
        (b"/v1/messages/count_tokens", False, ANTHROPIC),
        (b"/v1/models", False, OPENAI),
        (b"/v1/models", True, ANTHROPIC),
        (b"/nowhere", True, ANTHROPIC),
        (b"/nowhere", False, OPENAI),
    ],
)
def test_error_dialect_follows_path_and_headers(path: bytes, anthropic_headers: bool, dialect: Dialect) -> None:
    assert dialect_of(path, anthropic_headers) is dialect


# ---- errors of engines


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (  # vLLM 0.32
            400,
            {"error": {"message": "must be >= 0", "type": "BadRequestError", "param": "temperature", "code": 400}},
            (400, "must be >= 0", "temperature", None),
        ),
        (404, {"error": {"message": "unknown", "type": "NotFoundError", "code": 404}}, (404, "unknown", None, None)),
        (  # older vLLM, SGLang
            400,
            {"object": "error", "message": "bad", "type": "BadRequestError", "param": None, "code": 400},
            (400, "bad", None, None),
        ),
        (400, {"error": "bad", "error_type": "validation"}, (400, "bad", None, None)),  # TGI
        (422, {"detail": [{"loc": ["body", "n"], "msg": "too many"}]}, (400, "n: too many", "n", None)),  # FastAPI
        (404, {"detail": "Not Found"}, (404, "Not Found", None, None)),
        (400, {"type": "error", "error": {"type": "api_error", "message": "bad"}}, (400, "bad", None, None)),
        (400, {"error": {"message": "bad", "code": "invalid_value"}}, (400, "bad", None, "invalid_value")),
        (
            400,
            {"error": {"message": "This model's maximum context length is 4096 tokens.", "code": 400}},
            (400, "This model's maximum context length is 4096 tokens.", None, "context_length_exceeded"),
        ),
        (
            400,
            {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."},
            (400, "The input (9 tokens) is longer than the model's context length (8 tokens).", None,
             "context_length_exceeded"),
        ),
        (413, {"error": {"message": "too large"}}, (413, "too large", None, None)),
    ],
)  # fmt: skip
def test_an_engines_refusal_is_put_into_the_clients_dialect(
    status: int, said: dict[str, Any], expected: tuple[int, str, str | None, str | None]
) -> None:
    raw = json.dumps(said).encode()
    got, headers, body = read(upstream_error(OPENAI, status, raw, "req-1", b"x-extra: 1\r\n"))
    error = body["error"]
    assert (got, error["message"], error["param"], error["code"]) == expected
    assert error["type"] == "invalid_request_error"
    assert (headers["x-tailgate-reason"], headers["x-should-retry"]) == ("upstream-rejected", "false")
    assert (headers["x-request-id"], headers["x-extra"]) == ("req-1", "1")
    got, _, body = read(upstream_error(ANTHROPIC, status, raw, "req-1"))
    assert (got, body["error"]["message"]) == expected[:2]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"Bad Request",
        b"<html><body>nginx at 10.0.0.7</body></html>",
        b'{"error": {"mess',
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{}",
        b'{"error": null}',
        b'{"error": {"message": {"a": 1}}}',
        b'{"detail": []}',
        b'{"detail": [{"loc": 5, "msg": 6}]}',
        b'{"detail": ["x"]}',
        b'{"detail": [{"loc": [' + b"[" * 1000 + b"]" * 1000 + b"]}]}",
        b'{"error": {"message": "Traceback (most recent call last):\\n  File \\"/opt/vllm/x.py\\""}}',
        b'{"error": {"message": "' + b"x" * 300_000 + b'"}}',
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_unreadable_engine_error_becomes_a_plain_message(dialect: Dialect, body: bytes) -> None:
    status, _, document = read(upstream_error(dialect, 400, body, "r"))
    assert (status, document["error"]["message"]) == (400, "The replica refused the request.")


@pytest.mark.parametrize("status", [401, 403, 405, 406, 407, 409, 415, 418, 500, 501, 502, 302, 101, 999])
def test_upstream_auth_error_becomes_a_502_without_engine_text(status: int) -> None:
    body = b'{"error":"Unauthorized: Bearer sk-internal"}'
    got, headers, document = read(upstream_error(OPENAI, status, body, "r"))
    assert (got, headers["x-tailgate-reason"]) == (502, "upstream-error")
    assert document["error"]["message"] == "The replica failed."


@pytest.mark.parametrize("status", [429, 503])
def test_busy_engine_is_a_503_with_retry_after(status: int) -> None:
    got, headers, _ = read(upstream_error(OPENAI, status, b"{}", "r"))
    assert (got, headers["x-tailgate-reason"], headers["retry-after"]) == (503, "upstream-busy", "1")


@pytest.mark.parametrize(
    "inside",
    [
        *("http://10.1.2.3:8000/v1/chat", "https://replica-0.vllm.svc/x", "10.1.2.3:8000", "10.1.2.3"),
        *("vllm-0.vllm.default.svc:8000", "gpu-7.internal", "localhost:8000", "/usr/lib/python3/vllm/engine.py"),
        *("/models/llama", "redis://cache", "node.local"),
    ],
)
def test_error_message_does_not_reveal_the_address_of_the_engine(inside: str) -> None:
    raw = json.dumps({"error": {"message": f"refused by {inside} today"}}).encode()
    _, _, document = read(upstream_error(OPENAI, 400, raw, "r"))
    assert document["error"]["message"] == "refused by [...] today"
    for why in (Reason.UPSTREAM_ERROR, Reason.UPSTREAM_BUSY, Reason.IDLE_TIMEOUT, Reason.INTERNAL):
        event = error_event(OPENAI, Problem(why, f"died at {inside}"))
        assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == "died at [...]"


@pytest.mark.parametrize(
    "message",
    ["and/or 3.5 e.g. a.b", "n: must be <= 4", "expected `{'type': 'json_object'}`", "ratio 1/2", "version 0.32.1"],
)
def test_an_ordinary_error_message_of_an_engine_is_passed_on(message: str) -> None:
    raw = json.dumps({"error": {"message": message}}).encode()
    assert read(upstream_error(OPENAI, 400, raw, "r"))[2]["error"]["message"] == message


def test_long_engine_error_message_is_cut_and_loses_control_characters() -> None:
    raw = json.dumps({"error": {"message": "a\r\n\x00b" + "x" * 5000}}).encode()
    message = read(upstream_error(OPENAI, 400, raw, "r"))[2]["error"]["message"]
    assert message.startswith("a bx")
    assert len(message) == 1000
    assert message.endswith("…")


@given(status=st.integers(100, 999), body=st.one_of(st.binary(max_size=80), st.text(max_size=40).map(str.encode)))
def test_any_engine_error_gives_a_valid_error_response(status: int, body: bytes) -> None:
    got, _, document = read(upstream_error(OPENAI, status, body, "r"))
    assert got in (400, 404, 413, 502, 503)
    assert document["error"]["message"]


def test_infinite_retry_after_becomes_x_should_retry_false() -> None:
    problem = Problem(Reason.LIMIT_TOKENS, retry_after_s=math.inf)
    head = error_response(OPENAI, problem, "id").partition(b"\r\n\r\n")[0].decode().lower()
    assert "x-should-retry: false" in head
    assert "x-should-retry" not in error_response(OPENAI, Problem(Reason.LIMIT_TOKENS), "id").decode()
