"""Answers of APIs other than chat are read alike."""

from __future__ import annotations

import json

import pytest

from loadtests.replay.answer import Answer

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


def streamed(*events: dict[str, object]) -> Answer:
    answer = Answer()
    answer.keeps = True
    data = b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events)
    answer.feed(STREAM % (len(data), data))
    return answer


def whole(body: dict[str, object]) -> Answer:
    answer = Answer()
    answer.keeps = True
    data = json.dumps(body).encode()
    answer.feed(WHOLE % (len(data), data))
    return answer


def test_stream_of_messages_is_read() -> None:
    answer = streamed(
        {"type": "message_start", "message": {"usage": {"input_tokens": 11, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    )
    assert (answer.chunks, "".join(answer.said), answer.done, answer.finish_reason) == (2, "Hello", True, "end_turn")
    assert (answer.prompt_tokens, answer.output_tokens) == (11, 2)


def test_stream_of_responses_is_read() -> None:
    usage = {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
    answer = streamed(
        {"type": "response.created", "response": {}},
        {"type": "response.reasoning_text.delta", "delta": "hm"},
        {"type": "response.output_text.delta", "delta": "Hi"},
        {"type": "response.completed", "response": {"usage": usage}},
    )
    assert (answer.chunks, "".join(answer.said), answer.done) == (2, "Hi", True)
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (9, 2, 4)


def test_error_in_a_stream_of_another_api_is_an_error() -> None:
    answer = streamed({"type": "error", "error": {"type": "overloaded_error", "message": "later"}})
    assert (answer.error, answer.reason, answer.message) == (True, "overloaded_error", "later")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3}}, ""),
        ({"results": [{"index": 0, "relevance_score": 0.5}]}, ""),
        ({"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "usage": {"input_tokens": 3}}, "Hi"),
        ({"output": [{"content": [{"type": "output_text", "text": "Hi"}]}], "status": "completed"}, "Hi"),
        ({"choices": [{"message": {"content": "Hi"}}]}, "Hi"),
    ],
)
def test_whole_answer_of_any_api_has_a_token(body: dict[str, object], said: str) -> None:
    answer = whole(body)
    assert not answer.empty
    assert "".join(answer.said) == said


@pytest.mark.parametrize("body", [{"data": []}, {"content": []}, {"output": []}, {"results": []}])
def test_whole_answer_without_a_value_is_empty(body: dict[str, object]) -> None:
    assert whole(body).empty
