"""Whole answers as events; answers without a form as events give an error."""

from __future__ import annotations

import pytest

from gateway.wire.answers.as_events import chat_events, text_events


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"choices":[]}',
        b'{"choices":[7]}',
        b'{"choices":[{"message":{"content":"a","x":' + b"[" * 300 + b"]" * 300 + b"}}]}",
    ],
    ids=["nothing", "a list", "no choice", "a choice that is none", "deeper than can be written"],
)
def test_body_without_a_readable_choice_gives_no_events(body: bytes) -> None:
    assert chat_events(body, True) == text_events(body, True) == []


def test_whole_message_of_unknown_form_becomes_an_event_without_text() -> None:
    event, done = chat_events(b'{"choices":[{"message":7,"finish_reason":"stop"}]}', False)
    assert b'"delta":{}' in event
    assert done == b"data: [DONE]\n\n"
