"""A stream that is cut ends, in each API, like an answer that reached its length, with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.request import Endpoint
from gateway.core.results import Reason
from gateway.wire.answers.events import StreamReader
from gateway.wire.answers.sse import data_of
from gateway.wire.apis.table import API_OF, APIS

from .test_events import chat, typed

MARK = {"cut": "total-timeout"}
MARK_WITH_USAGE = {"cut": "total-timeout", "usage": "estimated"}


def read(endpoint: Endpoint, *events: bytes) -> StreamReader:
    make = API_OF[endpoint].answers.reader
    assert make is not None
    reader = make()
    reader.remember()
    for event in events:
        # As in the proxy: events up to the first token are parsed, most later ones are matched by bytes.
        if reader.tokens_seen and reader.plain(event + b"\r\n", 0):
            reader.tokens_seen += 1
        else:
            reader.read(event)
    return reader


def cut(reader: StreamReader, choices: int = 1, *, usage: bool = False) -> list[Any]:
    events = reader.cut_short(Reason.TOTAL_TIMEOUT, 77, choices, usage)
    assert all(event.endswith(b"\n\n") and event.count(b"\n\n") == 1 for event in events)
    payloads = [data_of(event) for event in events]
    return [payload.decode() if payload == b"[DONE]" else json.loads(payload) for payload in payloads]


def said(*texts: str) -> list[bytes]:
    return [chat({"role": "assistant", "content": ""}), *(chat({"content": text}) for text in texts)]


def test_cut_chat_ends_with_length_and_done() -> None:
    end, done = cut(read(Endpoint.CHAT, *said("Hello", " there")))
    choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert end == {
        "id": "c",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [choice],
        "tailgate": MARK,
    }
    assert done == "[DONE]"


def test_cut_chat_reports_the_tokens_that_passed_as_usage() -> None:
    _, usage, _ = cut(read(Endpoint.CHAT, *said("Hello", " there")), usage=True)
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 77, "completion_tokens": 2, "total_tokens": 79}
    assert usage["tailgate"] == MARK_WITH_USAGE


def test_cut_chat_reports_the_running_counts_of_the_engine() -> None:
    running = chat({"content": "a b c d"}, usage={"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13})
    _, usage, _ = cut(read(Endpoint.CHAT, *said(), running), usage=True)
    assert usage["usage"] == {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


def test_cut_chat_ends_only_its_unfinished_choices() -> None:
    def other(index: int, finish: str | None) -> bytes:
        choice = {"index": index, "delta": {"content": "x"}, "finish_reason": finish}
        return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"

    end, _ = cut(read(Endpoint.CHAT, *said("a"), other(2, None), other(1, "stop")), choices=3)
    assert [(choice["index"], choice["finish_reason"]) for choice in end["choices"]] == [(0, "length"), (2, "length")]


def test_cut_after_a_finish_reason_sends_only_the_missing_end() -> None:
    reader = read(Endpoint.CHAT, *said("a"), chat({}, "stop"))
    assert cut(reader) == ["[DONE]"]
    assert [type(event) for event in cut(reader, usage=True)] == [dict, str]


def test_cut_completion_ends_with_length_and_done() -> None:
    body = {"id": "c", "object": "text_completion", "created": 5, "model": "m"}
    event = {**body, "choices": [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": None}]}
    end, _ = cut(read(Endpoint.COMPLETIONS, b"data: " + json.dumps(event).encode() + b"\n\n"))
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    assert end == {**body, "choices": [choice], "tailgate": MARK}


BEGUN = typed("message_start", message={"id": "m", "usage": {"input_tokens": 12, "output_tokens": 0}})
BLOCK = typed("content_block_start", index=3, content_block={"type": "text", "text": ""})
DELTA = typed("content_block_delta", index=3, delta={"type": "text_delta", "text": "Hi"})


def test_cut_message_ends_its_open_block_and_itself() -> None:
    block, end, stop = cut(read(Endpoint.MESSAGES, BEGUN, BLOCK, DELTA, DELTA))
    assert block == {"type": "content_block_stop", "index": 3}
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"] == {"input_tokens": 12, "output_tokens": 2}
    assert end["tailgate"] == MARK_WITH_USAGE
    assert stop == {"type": "message_stop"}


def test_message_cut_between_two_blocks_ends_no_block() -> None:
    events = cut(read(Endpoint.MESSAGES, BEGUN, BLOCK, DELTA, typed("content_block_stop", index=3)))
    assert [event["type"] for event in events] == ["message_delta", "message_stop"]


def test_message_cut_after_its_stop_reason_lacks_only_message_stop() -> None:
    over = typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    assert cut(read(Endpoint.MESSAGES, BEGUN, BLOCK, DELTA, over)) == [{"type": "message_stop"}]


def response(*more: bytes) -> StreamReader:
    created = typed("response.created", response={"id": "r", "status": "in_progress", "output": []}, sequence_number=0)
    return read(Endpoint.RESPONSES, created, *more)


ITEM = typed("response.output_item.added", item={"type": "message", "id": "i", "content": []}, output_index=0)
PART = typed("response.content_part.added", part={"type": "output_text", "text": ""}, content_index=0, item_id="i")


def spoken(text: str, kind: str = "output_text") -> bytes:
    return typed(f"response.{kind}.delta", delta=text, item_id="i")


def test_cut_response_repeats_its_text_so_far() -> None:
    texts = ['Say "hi"', "\\", "\n\u00e9\u2603 ", "\U0001f600"]
    events = cut(response(ITEM, PART, *map(spoken, texts)))
    assert [event["type"] for event in events] == [
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event["sequence_number"] for event in events] == [7, 8, 9]
    whole = events[-1]["response"]
    assert (whole["id"], whole["status"]) == ("r", "incomplete")
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    part = {"type": "output_text", "text": "".join(texts)}
    assert whole["output"] == [{"type": "message", "id": "i", "content": [part], "status": "incomplete"}]
    assert whole["usage"]["output_tokens"] == 4
    assert whole["tailgate"] == MARK_WITH_USAGE


def test_cut_response_keeps_done_items_and_marks_open_ones_incomplete() -> None:
    done = typed("response.output_item.done", item={"type": "reasoning", "id": "h"}, output_index=0)
    call = typed("response.output_item.added", item={"type": "function_call", "name": "f", "arguments": ""})
    arguments = [spoken('{"pl', "function_call_arguments"), spoken('ace":', "function_call_arguments")]
    *_, last = cut(response(ITEM, PART, spoken("hm", "reasoning_text"), done, call, *arguments))
    finished, opened = last["response"]["output"]
    assert finished == {"type": "reasoning", "id": "h"}
    assert opened == {"type": "function_call", "name": "f", "arguments": '{"place":', "status": "incomplete"}


def test_response_cut_within_a_surrogate_pair_still_ends() -> None:
    *_, last = cut(response(ITEM, PART, spoken("ab\ud83d")))
    assert last["response"]["output"][0]["content"][0]["text"] == "ab?"


@pytest.mark.parametrize("endpoint", [e for api in APIS if api.answers.reader is not None for e in api.endpoints])
def test_stream_that_never_began_gets_no_end(endpoint: Endpoint) -> None:
    assert cut(read(endpoint)) == []


def test_response_of_unknown_form_gets_no_end() -> None:
    assert cut(response(typed("response.output_item.added", item=["?"]), spoken("a"))) == []
