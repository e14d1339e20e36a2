"""Readers of a replica's stream: tokens, finish, usage, errors, in each API."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.request import GENERATING, Endpoint
from gateway.core.results import AttemptOutcome
from gateway.wire.answers.events import (
    EventKind,
    StreamReader,
)
from gateway.wire.answers.failure import EngineError
from gateway.wire.answers.oddity import Oddity
from gateway.wire.answers.sse import MAX_EVENT_BYTES, EventSplitter, data_of
from gateway.wire.answers.whole import Aborted, AnswerError, Counted, read_usage, read_whole, usage_at_end
from gateway.wire.apis.chunks import CompletionReader
from gateway.wire.apis.messages import MessagesReader
from gateway.wire.apis.responses import ResponsesReader
from gateway.wire.apis.table import API_OF, APIS


def whole(endpoint: Endpoint, body: bytes) -> tuple[Counted, EngineError | None]:
    return read_whole(API_OF[endpoint].answers.whole, body)


def chat(delta: dict[str, object], finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def typed(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


@given(
    st.lists(st.text(alphabet='ab\u00e9 "{}', min_size=0, max_size=8), min_size=1, max_size=5),
    st.sampled_from(["\n\n", "\r\n\r\n"]),
    st.lists(st.integers(0, 200), max_size=10),
)
def test_sse_events_are_whole_however_the_bytes_are_cut(texts: list[str], end: str, places: list[int]) -> None:
    events = [f"data: {text}{end}".encode() for text in texts]
    body = b"".join(events)
    splitter = EventSplitter()
    edges = sorted({min(p, len(body)) for p in places} | {0, len(body)})
    got = [event for a, b in pairwise(edges) for event in splitter.feed(body[a:b])]
    assert b"".join(got) == body
    if end == "\n\n" or not any(body[p - 1 : p + 1] == b"\r\n" for p in edges):
        assert splitter.clean


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 30), st.sampled_from(["\n\n", "\r\n\r\n"]))
def test_overlong_sse_event_is_passed_on_in_pieces_and_its_neighbours_whole(
    sizes: list[int], length: int, end: str
) -> None:
    bound = 16
    before, after = f"data: a{end}".encode(), f"data: b{end}".encode()
    long = b"data: " + b"x" * (bound + length) + end.encode()
    body = before + long + after
    splitter = EventSplitter(bound)
    events, passed, place = [], b"", 0
    while place < len(body):
        size = sizes[place % len(sizes)]
        events += splitter.feed(body[place : place + size])
        passed += splitter.take_passed()
        place += size
    assert b"".join(sorted([*events, passed])) == b"".join(sorted([before, after, passed])) or long in events
    assert passed == (b"" if long in events else long)
    assert splitter.clean
    assert not splitter.is_long


def test_sse_event_without_an_end_is_not_kept_in_memory() -> None:
    splitter = EventSplitter()
    got = 0
    for _ in range(40):
        assert splitter.feed(b"x" * 65536) == []
        got += len(splitter.take_passed())
    assert got > 40 * 65536 - MAX_EVENT_BYTES - 2 * 65536
    assert splitter.rest() == b""


def test_the_role_chunk_is_not_a_token_and_the_first_word_is() -> None:
    reader = CompletionReader()
    assert reader.read(chat({"role": "assistant", "content": ""})) == EventKind.OTHER
    assert reader.read(chat({"content": "Hi"})) == EventKind.CONTENT
    assert reader.tokens_seen == 1


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"refusal": "no"},
    ],
)
def test_reasoning_and_tool_calls_are_output(delta: dict[str, object]) -> None:
    assert CompletionReader().read(chat(delta)) == EventKind.CONTENT


def test_a_completion_ends_with_finish_usage_and_done() -> None:
    reader = CompletionReader()
    reader.read(chat({"content": "a"}))
    assert not reader.complete
    assert reader.read(chat({"content": "b"}, "stop")) == EventKind.CONTENT | EventKind.FINISH
    assert reader.complete
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
    assert reader.read(usage) == EventKind.USAGE_ONLY
    assert (reader.prompt_tokens, reader.output_tokens) == (7, 2)
    assert reader.read(b"data: [DONE]\n\n") == EventKind.DONE


def test_usage_on_the_finish_chunk_is_read_and_the_chunk_is_not_usage_only() -> None:
    reader = CompletionReader()
    kind = reader.read(chat({}, "stop", usage={"prompt_tokens": 3, "completion_tokens": 1}))
    assert kind == EventKind.FINISH
    assert reader.output_tokens == 1


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (503, AttemptOutcome.BUSY),
        (429, AttemptOutcome.BUSY),
        (500, AttemptOutcome.FAILED),
        (400, AttemptOutcome.REJECTED),
    ],
)
def test_error_event_in_a_stream_of_status_200_gives_its_outcome(code: int, end: AttemptOutcome) -> None:
    reader = CompletionReader()
    event = f'data: {{"error":{{"message":"no room","type":"Service Unavailable","code":{code}}}}}\n\n'
    assert reader.read(event.encode()) == EventKind.ERROR
    assert reader.error is not None
    assert (reader.error.end, reader.error.message) == (end, "no room")
    assert not reader.complete


@given(st.text(max_size=60))
def test_generated_text_is_never_taken_for_a_field_of_the_protocol(text: str) -> None:
    reader = CompletionReader()
    reader.read(chat({"content": "x"}))
    tricky = text + '"finish_reason":"stop" "error":{"code":500} "usage":{} data: [DONE]\n\n'
    event = chat({"content": tricky})
    assert EventSplitter().feed(event) == [event]
    assert reader.plain(event + b"\r\n", 0)
    assert reader.read(event) == EventKind.CONTENT
    assert not reader.finished
    assert reader.error is None


MORE = pytest.mark.parametrize(
    "event",
    [
        chat({"content": "x"}, "stop"),
        chat({}, usage={"prompt_tokens": 1}),
        b'data: {"error":{"code":500}}\n\n',
        b"data: [DONE]\n\n",
        b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n',
        b'data: {"choices":[{"text":"x","finish_reason":"stop"},{"text":"y","finish_reason":null}]}\n\n',
    ],
)


@MORE
def test_event_with_more_than_output_is_parsed_in_full(event: bytes) -> None:
    assert not CompletionReader().plain(event + b"\r\n", 0)


@MORE
def test_event_with_more_than_output_is_parsed_in_full_once_the_form_is_known(event: bytes) -> None:
    reader = CompletionReader()
    reader.read(chat({"content": "x"}))
    assert not reader.plain(event + b"\r\n", 0)


@given(
    st.text(max_size=20), st.text(max_size=20), st.sampled_from([None, "stop"]), st.sampled_from(["content", "role"])
)
def test_fast_path_of_an_event_agrees_with_the_full_parse(first: str, text: str, finish: str | None, key: str) -> None:
    reader = CompletionReader()
    reader.read(chat({"content": first}))
    event = chat({key: text}, finish)
    if reader.plain(event + b"\r\n", 0):
        assert reader.read(event) == (EventKind.CONTENT if text and key == "content" else EventKind.OTHER)


@pytest.mark.parametrize(
    "payload", [b"{", b"[]", b'{"choices":3}', b"[" * 100_000, b"\xff\xfe", b'{"choices":[{"delta":[]}]}']
)
def test_an_event_that_cannot_be_read_counts_as_output_and_as_odd(payload: bytes) -> None:
    reader = CompletionReader()
    assert reader.read(b"data: " + payload + b"\n\n") == EventKind.CONTENT
    assert reader.oddity is Oddity.UNREADABLE_EVENT
    assert reader.tokens_seen == 1


@pytest.mark.parametrize("reader", [CompletionReader(), MessagesReader(), ResponsesReader()])
@given(data=st.binary(max_size=200))
def test_reading_an_event_never_raises_whatever_its_bytes(reader: StreamReader, data: bytes) -> None:
    reader.read(b"data: " + data + b"\n\n")
    reader.read(b"event: response.output_text.delta\ndata: " + data + b"\n\n")
    reader.read(b'data: {"type":"message_delta","delta":' + data + b',"usage":{"output_tokens":' + data + b"}}\n\n")


def test_error_and_end_of_a_stream_are_found_beside_invalid_utf_8() -> None:
    reader = CompletionReader()
    assert reader.read(b'data: {"error":{"message":"\xff","code":503}}\n\n') == EventKind.ERROR
    reader = CompletionReader()
    assert (
        reader.read(b'data: {"choices":[{"delta":{"content":"\xff"},"finish_reason":"st\xffop"}]}\n\n')
        & EventKind.FINISH
    )
    assert MessagesReader().read(b'event: x\ndata: {"type":"message_stop","x\xff":"\xff"}\n\n') == EventKind.DONE


@pytest.mark.parametrize("finish", [b'""', b"null"])
def test_done_ends_a_stream_in_which_no_choice_has_a_finish_reason(finish: bytes) -> None:
    reader = CompletionReader()
    reader.read(b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":%b}]}\n\n' % finish)
    assert not reader.complete
    assert reader.read(b"data:[DONE] \n\n") == EventKind.DONE
    assert reader.complete


@pytest.mark.parametrize(
    ("written", "tokens", "odd"),
    [
        (b"5", 5, False),
        (b"5.0", 5, False),
        (b"null", None, False),
        (b"5.5", None, True),
        (b"-1", None, True),
        (b'"5"', None, True),
        (b"true", None, True),
        (b"1e300", None, True),
        (b"9" * 400, None, True),
        (b"9" * 5000, None, True),
        (b"[" * 50_000 + b"]" * 50_000, None, True),
    ],
)
def test_token_count_that_is_no_64_bit_integer_is_odd(written: bytes, tokens: int | None, odd: bool) -> None:
    told = read_usage(b'{"completion_tokens":%b}' % written)
    assert (told.output, told.odd) == (tokens, odd)
    reader = CompletionReader()
    event = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"completion_tokens":%b}}\n\n' % written
    reader.read(event)
    assert reader.output_tokens == tokens
    assert (reader.oddity is not None) is odd


@pytest.mark.parametrize(
    ("reader", "event"),
    [
        (CompletionReader(), chat({"content": ""})),
        (CompletionReader(), chat({})),
        (CompletionReader(), b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n'),
        (MessagesReader(), typed("content_block_delta", index=0, delta={"type": "text_delta", "text": ""})),
        (ResponsesReader(), typed("response.output_text.delta", delta="")),
        (MessagesReader(), typed("ping")),
    ],
)
def test_empty_delta_counts_as_no_output(reader: StreamReader, event: bytes) -> None:
    packed = event.replace(b'": ', b'":').replace(b', "', b',"')
    for written in (event, packed):
        assert reader.read(written) == EventKind.OTHER or written is event
        assert not reader.plain(packed + b"\r\n", 0)


def test_comments_and_empty_events_have_no_content() -> None:
    for reader in (CompletionReader(), MessagesReader(), ResponsesReader()):
        assert reader.read(b": ping\n\n") == EventKind.OTHER


def test_messages_count_the_prompt_at_the_start_and_the_output_at_the_end() -> None:
    reader = MessagesReader()
    reader.read(typed("message_start", message={"usage": {"input_tokens": 9, "output_tokens": 0}}))
    assert reader.read(typed("content_block_start", index=0)) == EventKind.OTHER
    assert reader.read(typed("content_block_delta", delta={"text": "hi"})) == EventKind.CONTENT
    assert reader.read(typed("message_delta", delta={}, usage={"output_tokens": 4})) == EventKind.FINISH
    assert not reader.complete
    assert reader.read(typed("message_stop")) == EventKind.DONE
    assert reader.complete
    assert (reader.prompt_tokens, reader.output_tokens) == (9, 4)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"type": "request_too_large"}, 413),
        ({"type": "authentication_error"}, 401),
        ({"type": "invalid_request_error", "code": "model_not_found"}, 404),
        ({"type": "server_error", "code": "context_length_exceeded"}, 400),
        ({"type": "api_error"}, 500),
        ({"type": "invalid_request_error", "code": 500}, 500),
        ({"type": ["request_too_large"], "code": {"a": 1}}, 500),
    ],
)
def test_error_without_a_status_has_that_of_its_code_or_type(error: dict[str, object], status: int) -> None:
    reader = MessagesReader()
    assert reader.read(typed("error", error={**error, "message": "x"})) == EventKind.ERROR
    assert reader.error is not None
    assert reader.error.status == status


def test_an_overloaded_error_of_messages_is_busy() -> None:
    reader = MessagesReader()
    assert reader.read(typed("error", error={"type": "overloaded_error", "message": "later"})) == EventKind.ERROR
    assert reader.error is not None
    assert reader.error.end is AttemptOutcome.BUSY


@pytest.mark.parametrize(
    ("said", "end"),
    [
        ("Service Unavailable", AttemptOutcome.BUSY),
        ("BadRequestError", AttemptOutcome.REJECTED),
        ("InternalServerError", AttemptOutcome.FAILED),
    ],
)
def test_messages_error_of_vllm_without_a_code_is_classified_by_its_type(said: str, end: AttemptOutcome) -> None:
    reader = MessagesReader()
    assert reader.read(typed("error", error={"type": said, "message": "no"})) == EventKind.ERROR
    assert reader.error is not None
    assert reader.error.end is end


@pytest.mark.parametrize("reader", [MessagesReader(), ResponsesReader()], ids=["messages", "responses"])
def test_error_object_without_an_event_type_is_an_error_on_messages_and_responses(reader: StreamReader) -> None:
    event = b'data: {"error":{"message":"no room","type":"Service Unavailable","param":null,"code":503}}\n\n'
    assert reader.read(event) == EventKind.ERROR
    assert reader.error is not None
    assert (reader.error.end, reader.error.message) == (AttemptOutcome.BUSY, "no room")


def test_error_event_whose_code_is_no_status_counts_as_500() -> None:
    reader = CompletionReader()
    assert reader.read(b'data: {"error":{"message":"no","code":"%b"}}\n\n' % (b"9" * 5000)) == EventKind.ERROR
    assert reader.error is not None
    assert reader.error.status == 500


@pytest.mark.parametrize("last", ["response.completed", "response.incomplete"])
def test_responses_stream_ends_with_a_response_that_has_usage(last: str) -> None:
    reader = ResponsesReader()
    assert reader.read(typed("response.created", response={"usage": None, "error": None})) == EventKind.OTHER
    assert reader.read(typed("response.output_text.delta", delta="x")) == EventKind.CONTENT
    assert reader.read(typed("response.reasoning_text.delta", delta="x")) == EventKind.CONTENT
    assert reader.read(typed(last, response={"usage": {"input_tokens": 2, "output_tokens": 5}})) == EventKind.FINISH
    assert reader.complete
    assert (reader.prompt_tokens, reader.output_tokens) == (2, 5)


def test_responses_event_of_a_failed_response_is_an_error() -> None:
    reader = ResponsesReader()
    failed = typed("response.failed", response={"error": {"code": "server_error", "message": "gone"}})
    assert reader.read(failed) == EventKind.ERROR
    assert reader.error is not None
    assert reader.error.end is AttemptOutcome.FAILED


def test_the_error_event_of_the_responses_api_has_its_code_and_message_beside_its_type() -> None:
    reader = ResponsesReader()
    assert (
        reader.read(typed("error", code="server_error", message="gone", param=None, sequence_number=3))
        == EventKind.ERROR
    )
    assert reader.error is not None
    assert (reader.error.end, reader.error.message, reader.oddity) == (AttemptOutcome.FAILED, "gone", None)
    assert ResponsesReader().read(typed("error", code="429")) == EventKind.ERROR


def test_every_streaming_endpoint_has_a_reader() -> None:
    streaming = {endpoint for api in APIS if api.answers.reader is not None for endpoint in api.endpoints}
    assert streaming == GENERATING | {endpoint for api in APIS if api.shape.is_form for endpoint in api.endpoints}


def test_data_lines_of_one_event_are_joined() -> None:
    assert data_of(b"event: x\ndata: a\ndata:b\nid: 3\n\n") == b"a\nb"


@pytest.mark.parametrize(
    ("endpoint", "body", "told"),
    [
        (Endpoint.RERANK, b'{"results":[],"usage":{"prompt_tokens":5,"total_tokens":5}}', (5, 0)),
        (Endpoint.EMBEDDINGS, b'{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}', (5, 0)),
        (Endpoint.RERANK, b'{"results":[]}', (None, None)),
        (Endpoint.RERANK_BARE, b'[{"index":0,"score":0.5}]', (None, None)),
        (Endpoint.TOKENIZE, b'{"count":2,"max_model_len":8,"tokens":[1,2]}', (None, None)),
        (Endpoint.TRANSCRIPTIONS, b'{"text":"Hi","usage":{"type":"duration","seconds":3}}', (None, None)),
        (Endpoint.TRANSCRIPTIONS, b"1\n00:00:00,000 --> 00:00:01,000\nHi\n", (None, None)),
        (Endpoint.CHAT, b'{"choices":[],"usage":{"prompt_tokens":5}}', (5, None)),
    ],
)
def test_answer_without_text_has_0_output_tokens_if_its_prompt_was_counted(
    endpoint: Endpoint, body: bytes, told: tuple[int | None, int | None]
) -> None:
    usage, error = whole(endpoint, body)
    assert ((usage.prompt, usage.output), usage.odd, error) == (told, False, None)


def test_a_whole_answer_has_usage_or_an_error() -> None:
    usage, error = read_whole(
        API_OF[Endpoint.CHAT].answers.whole, b'{"usage":{"prompt_tokens":5,"completion_tokens":6},"error":null}'
    )
    assert (usage.prompt, usage.output, error) == (5, 6, None)
    usage, error = whole(Endpoint.CHAT, b'{"error":{"message":"full","code":503}}')
    assert error is not None
    assert error.end is AttemptOutcome.BUSY
    with pytest.raises(AnswerError):
        whole(Endpoint.CHAT, b'{"usage":')


def test_usage_is_found_at_the_end_of_an_answer_too_long_to_keep() -> None:
    assert usage_at_end(b'0.123],"index":0}],"usage":{"prompt_tokens":8,"total_tokens":8}}').prompt == 8
    assert usage_at_end(b"no usage here").prompt is None
    nested = b'"usage":{"input_tokens":86,"input_tokens_details":{"cached_tokens":64},"output_tokens":4},"user":null}'
    told = usage_at_end(nested)
    assert (told.prompt, told.cached, told.output, told.odd) == (86, 64, 4, False)
    assert usage_at_end(b'"usage":{"prompt_tokens":{}').odd


@pytest.mark.parametrize(
    ("usage", "prompt", "cached"),
    [
        (b'{"prompt_tokens":86,"prompt_tokens_details":{"cached_tokens":64,"created_cache_tokens":0}}', 86, 64),
        (b'{"prompt_tokens":86,"prompt_tokens_details":null}', 86, None),
        (b'{"prompt_tokens":86,"prompt_tokens_details":{"cached_tokens":null}}', 86, None),
        (b'{"prompt_tokens":86,"prompt_tokens_details":{"cached_tokens":-1}}', 86, None),
        (b'{"prompt_tokens":86,"prompt_tokens_details":{"cached_tokens":1e400}}', None, None),
        (b'{"prompt_tokens":86,"prompt_tokens_details":[64]}', 86, None),
        (b'{"input_tokens":86,"input_tokens_details":{"cached_tokens":64,"cache_write_tokens":0}}', 86, 64),
        # vLLM 0.32 in Anthropic's dialect: 22 of 86 tokens were in no whole block.
        (b'{"input_tokens":22,"cache_creation_input_tokens":0,"cache_read_input_tokens":64}', 86, 64),
        (b'{"input_tokens":22,"cache_creation_input_tokens":64,"cache_read_input_tokens":0}', 86, 0),
        (b'{"input_tokens":22,"cache_creation_input_tokens":null,"cache_read_input_tokens":null}', 22, None),
        (b'{"input_tokens":22,"cache_read_input_tokens":9223372036854775807}', None, 9223372036854775807),
    ],
)
def test_cached_tokens_are_read_in_each_dialect(usage: bytes, prompt: int | None, cached: int | None) -> None:
    told = read_usage(usage)
    assert (told.prompt, told.cached) == (prompt, cached)


def test_a_message_counts_its_cached_tokens_with_the_rest_of_the_prompt() -> None:
    reader = MessagesReader()
    reader.read(b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":86}}}\n\n')
    usage = b'{"input_tokens":22,"output_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":64}'
    delta = b'{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":%b}' % usage
    reader.read(b"event: message_delta\ndata: %b\n\n" % delta)
    assert (reader.prompt_tokens, reader.output_tokens, reader.cached_tokens) == (86, 4, 64)


# ---- vLLM's requests at its shutdown


def test_a_choice_that_the_engine_aborted_does_not_complete_a_stream() -> None:
    reader = CompletionReader()
    reader.read(chat({"content": "Hi"}))
    assert reader.read(chat({"content": ""}, "abort")) == EventKind.FINISH
    assert not reader.finished
    assert reader.read(b"data: [DONE]\n\n") == EventKind.DONE
    assert not reader.complete
    reader.read(chat({"content": ""}, "stop"))
    assert not reader.complete, "of several choices one is missing its end"


@pytest.mark.parametrize(("stop_reason", "complete"), [("end_turn", True), (None, False)])
def test_messages_stream_without_a_stop_reason_has_no_proper_end(stop_reason: str | None, complete: bool) -> None:
    reader = MessagesReader()
    reader.read(typed("content_block_delta", delta={"type": "text_delta", "text": "Hi"}))
    reader.read(typed("message_delta", delta={"stop_reason": stop_reason}, usage={"output_tokens": 1}))
    reader.read(typed("message_stop"))
    assert reader.complete is complete


def test_message_delta_without_a_stop_reason_does_not_prevent_completion() -> None:
    reader = MessagesReader()
    cases: list[dict[str, Any]] = [{}, {"delta": {}}, {"delta": None}, {"delta": ["stop_reason"]}]
    for fields in cases:
        reader.read(typed("message_delta", **fields))
        reader.read(typed("message_stop"))
        assert reader.complete, fields


@pytest.mark.parametrize("space", ["", " "])
def test_aborted_whole_answer_raises_an_error(space: str) -> None:
    aborted = f'{{"choices":[{{"finish_reason":{space}"stop"}},{{"finish_reason":{space}"abort"}}]}}'
    with pytest.raises(Aborted):
        whole(Endpoint.CHAT, aborted.encode())
    with pytest.raises(Aborted):
        whole(Endpoint.MESSAGES, b'{"type":"message","stop_reason":null}')


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.CHAT, b'{"choices":[{"message":{"content":"say \\"abort\\""},"finish_reason":"stop"}]}'),
        (Endpoint.CHAT, b'{"choices":[{"message":{"content":"abort"},"finish_reason":"stop","stop_reason":null}]}'),
        (Endpoint.COMPLETIONS, b'{"choices":[{"text":"abort","finish_reason":"length"}]}'),
        (Endpoint.EMBEDDINGS, b'{"data":["abort"]}'),
        (Endpoint.CHAT, b'{"choices":null}'),
        (Endpoint.CHAT, b'{"choices":7}'),
        (Endpoint.CHAT, b'{"choices":["abort"]}'),
        (Endpoint.CHAT, b'{"choices":[{"finish_reason":{"type":"abort"}}]}'),
        (Endpoint.RESPONSES, b'{"status":"cancelled","metadata":{"a":"abort"}}'),
        (Endpoint.MESSAGES, b'{"type":"message","stop_reason":"end_turn","content":[{"text":"abort"}]}'),
        (Endpoint.MESSAGES, b'{"type":"message"}'),
    ],
)
def test_whole_answer_that_mentions_abort_in_its_text_is_no_error(endpoint: Endpoint, body: bytes) -> None:
    usage, error = whole(endpoint, body)
    assert (usage.prompt, usage.output, usage.odd, error) == (None, None, False, None)


@pytest.mark.parametrize(
    ("choice", "is_answer"),
    [
        ({"message": {"role": "assistant", "content": ""}}, False),
        ({"message": {"content": "", "tool_calls": [], "reasoning": None, "refusal": None}}, False),
        ({"text": ""}, False),
        ({"message": {"content": "a"}}, True),
        ({"message": {"content": "", "tool_calls": [{"id": "t"}]}}, True),
        ({"message": {"content": "", "reasoning": "hm"}}, True),
        ({"message": {"content": None, "tool_calls": [{"id": "t"}]}}, True),
        ({"message": {"content": '"content":""'}}, True),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_whole_answer_with_neither_text_nor_tool_call_counts_as_no_answer(
    choice: dict[str, object], is_answer: bool, separators: tuple[str, str]
) -> None:
    body = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", **choice}]}, separators=separators)
    told, _ = whole(Endpoint.CHAT, body.encode())
    assert told.is_answer is is_answer


def test_usage_of_0_tokens_is_read_as_written_even_beside_text() -> None:
    usage = b'"usage":{"prompt_tokens":3,"completion_tokens":0}'
    told, _ = read_whole(
        API_OF[Endpoint.CHAT].answers.whole, b'{"choices":[{"message":{"content":"Hi"}}],' + usage + b"}"
    )
    assert (told.prompt, told.output, told.odd, told.is_answer) == (3, 0, False, True)
    told, _ = read_whole(
        API_OF[Endpoint.CHAT].answers.whole, b'{"choices":[{"message":{"content":""}}],' + usage + b"}"
    )
    assert (told.output, told.odd, told.is_answer) == (0, False, False)


@pytest.mark.parametrize(
    ("endpoint", "event", "text"),
    [
        (Endpoint.CHAT, chat({"content": "a", "reasoning": "b"}), "ab"),
        (Endpoint.CHAT, chat({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), "{}"),
        (Endpoint.COMPLETIONS, b'data: {"choices":[{"text":"a"},{"text":"b"}]}\n\n', "ab"),
        (Endpoint.MESSAGES, typed("content_block_delta", delta={"type": "text_delta", "text": "a"}), "a"),
        (Endpoint.MESSAGES, typed("content_block_delta", delta={"partial_json": "{"}), "{"),
        (Endpoint.RESPONSES, typed("response.output_text.delta", delta="a"), "a"),
        *((endpoint, event, "") for endpoint in sorted(GENERATING) for event in (b"data: [DONE]\n\n", b"data: []\n\n")),
        *((endpoint, b'data: {"delta":5,"choices":[5]}\n\n', "") for endpoint in sorted(GENERATING)),
    ],
)
def test_text_of_an_event_is_read_in_the_format_of_each_api(endpoint: Endpoint, event: bytes, text: str) -> None:
    make = API_OF[endpoint].answers.reader
    assert make is not None
    assert make().spoken(event) == text


FLOODS = {"blank lines": b"\n", "blank lines of CR LF": b"\r\n", "comments": b": x\n\n", "empty comments": b":\n"}
MIB = 1024 * 1024
READ_BYTES = 32 * 1024


def _cpu_s(data: bytes) -> float:
    """CPU seconds to read a stream."""
    splitter, reader = EventSplitter(), CompletionReader()
    began = time.thread_time()
    for at in range(0, len(data), READ_BYTES):
        for event in splitter.feed(data[at : at + READ_BYTES]):
            reader.read(event)
    return time.thread_time() - began


@pytest.mark.parametrize("flood", FLOODS)
def test_flood_without_content_costs_little_more_than_tokens(flood: str) -> None:
    said = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]}
    event, part = b"data: %b\n\n" % json.dumps(said).encode(), FLOODS[flood]
    pairs = [(_cpu_s(part * (MIB // len(part))), _cpu_s(event * (MIB // len(event)))) for _ in range(5)]
    floods, tokens = zip(*pairs, strict=True)  # in turns, so that a busy machine slows down both
    assert min(floods) < 1.5 * min(tokens)  # with an event for each, comments cost 1.9, blank lines 5 times as much


def test_events_after_a_flood_are_read() -> None:
    for part in FLOODS.values():
        splitter = EventSplitter()
        events = splitter.feed(b"data: 1\n\n" + part * 3 + b"data: 2\n\n" + part * 5)
        assert [data_of(event) for event in events if data_of(event)] == [b"1", b"2"]
