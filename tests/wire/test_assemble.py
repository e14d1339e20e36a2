"""An assembled stream has the form of vLLM's whole answer; both were recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.request import GENERATING, Endpoint
from gateway.wire.answers.assemble import MAX_BYTES, Assembly, AssemblyError
from gateway.wire.apis.table import API_OF

RECORDED = json.loads((Path(__file__).parents[1] / "loadtests/emulator/vllm-0.32.json").read_text())


def _answers(path: str, *, stream: bool) -> list[tuple[dict[str, Any], Any]]:
    """Bodies and answers with one choice, streamed and whole."""
    calls = [call for call in RECORDED if call["path"] == path and call["status"] == 200]
    asked = [(json.loads(call["body"]), call["answer"]) for call in calls]
    return [(body, answer) for body, answer in asked if body.get("stream", False) is stream]


def _form(value: Any) -> Any:
    """The paths and types of a JSON value; a list counts by its first element."""
    if isinstance(value, dict):
        return {name: _form(inner) for name, inner in sorted(value.items())}
    if isinstance(value, list):
        return [_form(value[0])] if value else []
    return type(value).__name__


def assembly(endpoint: Endpoint) -> Assembly:
    make = API_OF[endpoint].answers.assembly
    assert make is not None
    return make()


def _together(endpoint: Endpoint, events: list[str]) -> Any:
    made = assembly(endpoint)
    made.add([f"{event}\n\n".encode() for event in events])
    return json.loads(made.whole())


def _text(endpoint: Endpoint, answer: Any) -> str:
    match endpoint:
        case Endpoint.CHAT:
            return answer["choices"][0]["message"]["content"]
        case Endpoint.COMPLETIONS:
            return answer["choices"][0]["text"]
        case Endpoint.MESSAGES:
            return answer["content"][0]["text"]
        case _:
            return "".join(p["text"] for item in answer["output"] for p in item.get("content") or ())


STREAMED = [e for e in Endpoint if e in GENERATING]


@pytest.mark.parametrize("endpoint", STREAMED)
def test_assembled_answer_has_the_form_of_an_unstreamed_answer(endpoint: Endpoint) -> None:
    (_, whole), *_ = _answers(endpoint.value, stream=False)
    (_, events), *_ = _answers(endpoint.value, stream=True)
    form, wanted = _form(_together(endpoint, events)), _form(json.loads(whole))
    # Usage of a recorded stream is there only if it was asked for, which the gateway always does.
    if "usage" not in form:
        form["usage"] = wanted["usage"]
    if endpoint is Endpoint.MESSAGES:
        assert form.pop("stop_sequence") == "NoneType"  # the reference has it, vLLM leaves it out if it is null
        wanted.pop("stop_sequence", None)
    assert form == wanted


@pytest.mark.parametrize("endpoint", STREAMED)
def test_assembled_answer_has_all_text_of_the_stream(endpoint: Endpoint) -> None:
    for _, events in _answers(endpoint.value, stream=True):
        said = ""
        for event in events:
            data = event.partition("data: ")[2]
            value = {} if data == "[DONE]" else json.loads(data)
            for choice in value.get("choices", ()):
                if choice["index"] == 0:
                    said += choice.get("text") or choice.get("delta", {}).get("content") or ""
            delta = value.get("delta")
            said += delta if isinstance(delta, str) else (delta or {}).get("text", "")
        assert said
        assert _text(endpoint, _together(endpoint, events)) == said


def test_log_probabilities_of_two_choices_are_assembled() -> None:
    streams = [(b, a) for b, a in _answers("/v1/chat/completions", stream=True) if b.get("n") == 2]
    assert streams
    for body, events in streams:
        answer = _together(Endpoint.CHAT, events)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        tokens: dict[int, list[object]] = {0: [], 1: []}
        for event in events[:-1]:
            for part in json.loads(event.removeprefix("data: "))["choices"]:
                tokens[part["index"]] += (part["logprobs"] or {}).get("content", ())
        for choice in answer["choices"]:
            assert choice["logprobs"] == {"content": tokens[choice["index"]]}
            assert len(tokens[choice["index"]]) == body["max_tokens"]
        assert answer["usage"]["completion_tokens"] == 2 * body["max_tokens"]


def test_overlong_assembly_is_given_up() -> None:
    made = assembly(Endpoint.CHAT)
    event = json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": "x" * 500_000}}]}).encode()
    for _ in range(MAX_BYTES // 510_000):
        made.add([b"data: " + event + b"\n\n"])
    with pytest.raises(AssemblyError, match="too long"):
        made.add([b"data: " + event + b"\n\n"] * 5)


@pytest.mark.parametrize(
    "event", ['{"choices": 5}', '{"choices": [7]}', "[1]", '{"choices": [{"index": [], "delta": 1}]}']
)
def test_malformed_event_is_an_assembly_error(event: str) -> None:
    with pytest.raises(AssemblyError):
        assembly(Endpoint.CHAT).add([f"data: {event}\n\n".encode()])


def test_a_response_that_is_no_object_is_an_assembly_error() -> None:
    with pytest.raises(AssemblyError):
        assembly(Endpoint.RESPONSES).add([b'data: {"type":"response.completed","response":"all of it"}\n\n'])


def test_an_answer_nested_deeper_than_can_be_joined_is_an_assembly_error() -> None:
    deep = b'{"a":' * 1000 + b"1" + b"}" * 1000
    made = assembly(Endpoint.CHAT)
    event = b'data: {"choices":[{"index":0,"delta":{"x":' + deep + b"}}]}\n\n"
    with pytest.raises(AssemblyError):  # noqa: PT012 - compiled, it is joined and cannot be written
        made.add([event, event])
        made.whole()


def _said(*texts: bytes) -> str:
    made = assembly(Endpoint.CHAT)
    made.add([b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text for text in texts])
    content: str = json.loads(made.whole())["choices"][0]["message"]["content"]
    return content


def test_assembly_joins_a_character_split_over_two_events_and_replaces_half_a_character() -> None:
    assert _said(rb"a\ud83d", rb"\ude00b") == "a\U0001f600b"
    assert _said(rb"\\ud83d a\ud83d") == "\\ud83d a\ufffd"
    assert _said(rb"\ude00", b"b") == "\ufffdb"


def test_odd_values_beside_the_text_do_not_prevent_assembly() -> None:
    made = assembly(Endpoint.CHAT)
    made.add(
        [
            b'data: {"choices":[{"index":"0","delta":{"content":"a"}}],"usage":5}\n\n',
            b'data: {"choices":[{"index":0.0,"delta":{"content":"b"}}],"x":1e999,"y":"\xff"}\n\n',
            b'data: {"choices":[{"index":1,"delta":{"x":' + b"[" * 300 + b"]" * 300 + b"}}]}\n\n",
        ]
    )
    answer = json.loads(made.whole())
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["ab", None]
    assert (answer.get("usage"), answer.get("x")) == (None, None)


def test_stream_with_the_oddities_of_other_servers_is_assembled() -> None:
    made = assembly(Endpoint.CHAT)
    for event in (
        b'{"choices":[],"prompt_filter_results":[]}',
        b'{"id":"c","object":"chat.completion.chunk"}',
        b'{"choices":[{"delta":{"role":"assistant","content":null}}]}',
        b'{"choices":[{"delta":{"content":"a\xff"}}]}',
        b'{"choices":[],"usage":{"completion_tokens":%b,"prompt_tokens":NaN}}' % (b"9" * 400),
        b'{"choices":[{"delta":{"tool_calls":[{"id":"t","function":{"name":"f","arguments":"{\\"x\\""}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":":1}"}}]},"finish_reason":""}]}',
        b"[DONE] ",
    ):
        made.add([b"data: " + event + b"\n\n"])
    answer = json.loads(made.whole())
    assert (answer["usage"]["completion_tokens"], answer["usage"]["prompt_tokens"]) == (None, None)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "a\ufffd"
    assert choice["message"]["tool_calls"] == [
        {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    ]


def test_responses_stream_without_its_last_event_gives_no_assembled_answer() -> None:
    made = assembly(Endpoint.RESPONSES)
    made.add([b'data: {"type":"response.created","response":{"id":"r"}}\n\n'])
    with pytest.raises(AssemblyError):
        made.whole()


def test_messages_event_before_message_start_is_an_assembly_error() -> None:
    made = assembly(Endpoint.MESSAGES)
    with pytest.raises(AssemblyError):
        made.add([b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}\n\n'])
