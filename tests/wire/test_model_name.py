"""The requested name replaces only the engine's name in the bytes of an answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.answers.model_name import ModelName, model_at_start

NAMES = st.one_of(st.text(min_size=1, max_size=8), st.sampled_from(["m", "org/m", 'a"b', "\\\\", "\u00e9"]))
SEPARATORS = ((",", ":"), (", ", ": "))


@given(NAMES, NAMES, st.text(max_size=20), st.sampled_from(SEPARATORS), st.booleans())
def test_answer_gets_the_requested_model_name_and_no_other_change(
    asked: str, reported: str, text: str, separators: tuple[str, str], ascii_only: bool
) -> None:
    tricky = text + json.dumps({"model": reported})
    answer = {"id": reported, "model": reported, "choices": [{"delta": {"content": tricky}}]}
    body = json.dumps(answer, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "replace")
    told = json.dumps(reported, ensure_ascii=ascii_only).encode("utf-8", "replace")
    try:
        name = ModelName(asked)
    except TypeError:
        return  # half a surrogate, which no request can carry
    name.learn(told, body)
    assert json.loads(name.apply(body)) == {**json.loads(body), "model": asked}


ENGINE = "engine/m"
TOOL = {"type": "tool_use", "name": "f", "input": {"model": ENGINE, "of": [{"model": ENGINE}]}}


@pytest.mark.parametrize(
    "answer",
    [
        {"model": ENGINE, "content": [TOOL]},
        {"content": [{"text": "}}"}, TOOL], "model": ENGINE},
        {"metadata": {"model": ENGINE}, "text": "{", "model": ENGINE},
        {"text": 'a "}', "model": ENGINE, "metadata": {"model": ENGINE}},
    ],
    ids=["before", "after", "metadata", "braces in a text"],
)
@pytest.mark.parametrize("separators", SEPARATORS)
def test_model_field_inside_tool_input_or_metadata_is_not_renamed(
    answer: dict[str, object], separators: tuple[str, str]
) -> None:
    body = json.dumps(answer, separators=separators).encode()
    name = ModelName("asked")
    name.learn(json.dumps(ENGINE).encode(), body)
    assert json.loads(name.apply(body)) == {**answer, "model": "asked"}


def test_model_field_inside_streamed_tool_input_is_not_renamed() -> None:
    first = b'event: message_start\ndata: {"type":"message_start","message":{"content":[],"model":"engine/m"}}\n\n'
    tool = b'event: content_block_start\ndata: {"content_block":{"type":"tool_use","input":{"model":"engine/m"}}}\n\n'
    broken = b'data: {"delta": {"text": "cut \n\n'
    name = ModelName("asked")
    name.learn(b'"engine/m"', first)
    assert name.apply(first) == first.replace(b"engine/m", b"asked")
    assert name.apply(tool) == tool
    assert name.apply(broken + first + tool) == broken + first.replace(b"engine/m", b"asked") + tool


def test_each_event_in_one_read_gets_the_requested_model_name() -> None:
    events = [b'data: {"id":"1","model":"engine/m","x":{"model":"engine/m"},"n":%d}\n\n' % n for n in range(3)]
    events.append(b'data: {"x":{"model":"engine/m"},"model":"engine/m"}\n\n')
    name = ModelName("asked")
    name.learn(b'"engine/m"', events[0])
    assert [json.loads(line[6:]) for line in name.apply(b"".join(events)).split(b"\n\n") if line] == [
        {**json.loads(event[6:]), "model": "asked"} for event in events
    ]
    assert name.apply_to_one(events[1]) == name.apply(events[1])
    assert name.apply_to_one(events[3]) == name.apply(events[3])


def test_model_name_that_overlaps_a_replaced_one_stays_unchanged() -> None:
    name = ModelName("asked")
    name.learn(b'"model"', b'{"model":"model"}')
    broken = b'{"a":"}","model":"model":"model"}'
    assert name.apply(broken) == b'{"a":"}","model":"asked":"model"}'


@pytest.mark.parametrize("told", [b"", b"null", b"7", b'"other"'])
def test_unreadable_model_name_in_an_answer_changes_nothing(told: bytes) -> None:
    name = ModelName("asked")
    name.learn(told, b'{"model":"reported"}')
    assert not name.changes
    assert name.apply(b'{"model":"reported"}') == b'{"model":"reported"}'


@pytest.mark.parametrize(
    ("beginning", "found"),
    [
        (b'{"id":"x","created":1,"model":"a\\"b","data":[{"model":"inner"}', b'"a\\"b"'),
        (b' {"text":"a \\"model\\":\\"no\\"", "model" : "m"', b'"m"'),
        (b'{"data":[{"model":"inner"}],"model":"late"}', b""),
        (b'{"usage":{"model":"inner"},"model":"late"}', b""),
        (b'{"model":"cut off', b""),
        (b'{"model":null,"data":[]}', b""),
        (b'[{"model":"inner"}]', b""),
        (b"", b""),
    ],
)
def test_model_name_of_an_answer_is_found_only_at_its_top_level_start(beginning: bytes, found: bytes) -> None:
    assert model_at_start(beginning) == found
