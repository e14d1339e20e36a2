"""`tailgate explain --live`: the printed form of an answer."""

from __future__ import annotations

import http.server
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import gateway.process
from gateway.cli.running.live import show
from gateway.policy.builtin import builtin
from gateway.settings import Settings
from tests.test_cli import run


def at(replica: str, breach: float, unread: int) -> dict[str, Any]:
    times = {"wait_s": 0.0, "ttft_s": 0.1, "tpot_s": 0.01, "e2e_s": 1.5}
    return {
        "replica": replica,
        "breach": breach,
        "in_flight": 1,
        "unprefilled_tokens": unread,
        **times,
    }


FOUND = {
    "verdict": "sent",
    "constraint": "",
    "why": "P(breach) is within the threshold",
    "pool": "short",
    "mode": "on",
    "trust": "trusted",
    "threshold": 0.5,
    "prompt_tokens": 500,
    "max_tokens": 100,
    "ahead": 0,
    "higher_share": 0.0,
    "drain_rate": None,
    "own_rate": 0.9,
    "best": at("short-1", 0.2, 0),
    "runner_up": at("short-2", 0.1, 900),
}


def shown(found: dict[str, Any], *, terminal: bool = False) -> str:
    text = io.StringIO()
    show(found, Console(file=text, force_terminal=terminal, width=200, markup=False, highlight=False, _environ={}))
    return text.getvalue()


def test_explain_writes_plain_text_to_a_pipe_and_colours_to_a_terminal() -> None:
    assert shown(FOUND).startswith("sent to short-1  (P(breach) is within the threshold)\n")
    assert "[cyan]" not in shown(FOUND)
    assert "\x1b[36m" in shown(FOUND, terminal=True)


def test_explain_names_the_deciding_constraint() -> None:
    assert "decided by" not in shown(FOUND)
    waits = {**FOUND, "verdict": "waits", "constraint": "KV cache", "best": {**at("", 0.2, 0), "replica": None}}
    assert "decided by KV cache\n" in shown(waits)


def test_explain_says_why_the_best_replica_is_best_if_there_is_a_runner_up() -> None:
    assert "best: where it would be sent; runner-up: the next by unread prompt tokens" in shown(FOUND)
    assert "runner-up" not in shown({**FOUND, "runner_up": None})


def test_explain_says_how_fast_the_tier_is_sent_from_its_queue_if_that_is_known() -> None:
    assert "0.9/s of its tier were sent from the queue" in shown(FOUND)
    assert "of its tier" not in shown({**FOUND, "own_rate": None})


def test_explain_keeps_the_end_of_long_replica_names() -> None:
    text = io.StringIO()
    show({**FOUND, "best": at(f"gpu-{'x' * 90}-17", 0.2, 0)}, Console(file=text, width=80, _environ={}))
    assert "17" in text.getvalue().partition("unread")[2]


def test_explain_live_prints_a_refusal() -> None:
    assert shown({"why": "[bad]", "detail": "no such tier"}) == "refused  [bad]  no such tier\n"


@contextmanager
def another_server() -> Iterator[str]:
    class NotFound(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    with http.server.HTTPServer(("127.0.0.1", 0), NotFound) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_explain_live_gives_a_hint_if_the_port_is_not_the_admin_port() -> None:
    hint = "is this the admin port of a running gateway?"
    with another_server() as url:
        wrong = run("explain", "--live", url)
    nobody = run("explain", "--live", url)
    for result in (wrong, nobody):
        assert result.exit_code == 2
        assert hint in result.stderr
        assert "<urlopen" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--live", "http://127.0.0.1:1", "--policy", "p.yaml"], "--policy"),
        (["--policy", "p.yaml", "--tier", "gold"], "--tier"),
        (["--policy", "p.yaml", "--no-stream"], "--stream"),
    ],
)
def test_explain_refuses_options_that_would_have_no_effect(arguments: list[str], named: str) -> None:
    result = run("explain", *arguments)
    assert result.exit_code == 2
    assert named in result.stderr
    assert "--live" in result.stderr


@pytest.mark.parametrize("setting", ["port", "admin_port"])
def test_taken_port_is_reported_in_one_line(
    setting: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.process, "configure_logging", lambda *_, **__: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = Settings(**{"port": 0, "admin_port": 0, setting: port})
        assert gateway.process.serve(settings, None, partial(builtin, ["http://127.0.0.1:9"])) == 3
    flag = setting.replace("_", "-")
    said = f"port {port} is taken: give another by --{flag} (TAILGATE_{setting.upper()}); 0 takes a free one\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("setting", ["host", "admin_host"])
def test_address_that_cannot_be_listened_on_is_reported_with_its_option(
    setting: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.process, "configure_logging", lambda *_, **__: None)
    monkeypatch.setattr(gateway.process, "exposure_error", lambda *_: None)
    for host in ("192.0.2.1", "999.1.1.1", "x" * 80):
        settings = Settings(port=0, admin_port=0).model_copy(update={setting: host})
        assert gateway.process.serve(settings, None, partial(builtin, ["http://127.0.0.1:9"])) == 3
        said = capsys.readouterr().err
        assert said.startswith(f"{host} port 0 cannot be listened on: ")
        assert f"--{setting.replace('_', '-')} (TAILGATE_{setting.upper()})" in said


@pytest.mark.parametrize("name", ["missing/admin.sock", "x" * 120, "notes.txt"])
def test_admin_socket_that_cannot_be_made_is_reported_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.process, "configure_logging", lambda *_, **__: None)
    (tmp_path / "notes.txt").write_text("mine")
    path = tmp_path / name
    settings = Settings(port=0, admin_port=0, admin_uds=path)
    assert gateway.process.serve(settings, None, partial(builtin, ["http://127.0.0.1:9"])) == 3
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(f"the unix socket {path} cannot be made: ")
    assert said[-1].endswith("give another by --admin-uds (TAILGATE_ADMIN_UDS)")
