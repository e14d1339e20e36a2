"""Log lines: one per event, parseable, unforgeable, and silent by default."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from gateway.core.redundancy.request_quarantine import News
from gateway.observe.logs import MAX_NEWS, configure_logging, log_quarantine

FORGED = 'x"\n2025-01-01T00:00:00Z INFO gateway: forged \x1b[31m\u2028 a=b'


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the process's logging after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)


def logged(level: str, as_json: bool, request_id: str = "req-1") -> str:
    out = io.StringIO()
    configure_logging(level, as_json, out)
    fields = {"request_id": request_id, "reason": None}
    logging.getLogger("tailgate.refusals").info("ended", extra={"fields": fields})
    return out.getvalue()


def test_log_line_has_its_fields_as_json_or_as_readable_text() -> None:
    line = json.loads(logged("info", as_json=True))
    assert (line["level"], line["logger"], line["message"], line["request_id"]) == (
        "info",
        "tailgate.refusals",
        "ended",
        "req-1",
    )
    assert logged("info", as_json=False).endswith(" INFO tailgate.refusals: ended request_id=req-1 reason=-\n")


def test_log_line_below_the_level_is_not_written() -> None:
    assert logged("warning", as_json=True) == ""


@pytest.mark.parametrize("as_json", [True, False])
def test_request_id_cannot_forge_a_log_line(as_json: bool) -> None:
    text = logged("info", as_json, FORGED)
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text
    if as_json:
        assert json.loads(text)["request_id"] == FORGED
    else:
        assert f"request_id={json.dumps(FORGED)} " in text


@pytest.mark.parametrize("as_json", [True, False])
def test_log_message_cannot_forge_a_second_line(as_json: bool) -> None:
    out = io.StringIO()
    configure_logging("info", as_json, out)
    logging.getLogger("gateway.test").warning("bad model %s", FORGED)
    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b" not in out.getvalue()


def test_quarantine_log_line_has_fingerprint_and_replicas() -> None:
    out = io.StringIO()
    configure_logging("info", True, out)
    log_quarantine([News(0xBAD, ("a", "b"), True, 2)])
    caught, refused = map(json.loads, out.getvalue().splitlines())
    assert caught["message"].startswith("a request is in quarantine for 300 s")
    assert (caught["level"], caught["fingerprint"], caught["replicas"]) == ("warning", "0000000000000bad", "a,b")
    assert (refused["message"], refused["fingerprint"]) == ("a request in quarantine was refused", "0000000000000bad")
    assert (refused["replicas"], refused["times"]) == ("a,b", 2)


def test_quarantine_of_many_requests_at_once_is_logged_in_a_few_lines() -> None:
    out = io.StringIO()
    configure_logging("info", False, out)
    log_quarantine([News(number, ("a", "b"), True, 0) for number in range(100)])
    lines = out.getvalue().splitlines()
    assert len(lines) == MAX_NEWS + 1
    assert lines[-1].endswith(f"{100 - MAX_NEWS} more requests in quarantine were refused since the last line")


@pytest.mark.parametrize("as_json", [True, False])
def test_the_log_of_an_exception_has_its_traceback(as_json: bool) -> None:
    out = io.StringIO()
    configure_logging("info", as_json, out)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("gateway.test").exception("it failed")
    text = json.loads(out.getvalue())["error"] if as_json else out.getvalue()
    assert "Traceback" in text
    assert "ValueError: broken" in text


def test_reconfigured_logging_writes_each_line_once_and_only_to_the_new_stream() -> None:
    before = io.StringIO()
    configure_logging("debug", True, before)
    assert logged("debug", as_json=True).count("\n") == 1
    assert before.getvalue() == ""


def test_exports_by_http_write_no_line_each() -> None:
    out = io.StringIO()
    configure_logging("info", False, out)
    with httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
        client.post("http://127.0.0.1:4318/v1/traces")
    assert out.getvalue() == ""
