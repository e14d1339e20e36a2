"""Files of prompts: what is read, in which order, at which times, and in how much memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from gateway.sim.workload.traces import EmptyRows, Mix, TraceError
from loadtests.replay.written import Written
from loadtests.traces.prompt_file import PromptFile

BATCH = {"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {"model": "e", "input": "hi"}}
TALK = {
    "conversations": [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "One?"},
        {"from": "gpt", "value": "1"},
        {"from": "human", "value": "Two?"},
        {"from": "gpt", "value": "2"},
    ]
}


def read(path: Path, text: str, seed: int = 1, **options: Any) -> list[Written]:
    path.write_text(text)
    found = list(PromptFile(path, Mix(), **options).arrivals(seed))
    assert all(isinstance(arrival, Written) for arrival in found)
    return found  # type: ignore[return-value]


def lines(*documents: object) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


def questions(found: list[Written]) -> list[object]:
    return [arrival.messages[-1]["content"] for arrival in found]


def test_batch_file_keeps_body_and_path(tmp_path: Path) -> None:
    (found,) = read(tmp_path / "f", lines(BATCH))
    assert (found.path, found.body, found.stream) == ("/v1/embeddings", BATCH["body"], False)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7}, "/v1/chat/completions"),
        ({"prompt": "hi"}, "/v1/completions"),
        ({"input": "hi"}, "/v1/responses"),
        ({"query": "hi", "documents": ["a"]}, "/v1/rerank"),
    ],
)
def test_api_of_a_body_follows_from_its_fields(tmp_path: Path, body: dict[str, object], path: str) -> None:
    (found,) = read(tmp_path / "f", lines(body))
    assert (found.path, found.body, found.output_tokens) == (path, body, body.get("max_tokens", 0))
    (other,) = read(tmp_path / "f", lines(body), api="/v1/embeddings")
    assert other.path == "/v1/embeddings"


def test_plain_lines_are_streamed_chats(tmp_path: Path) -> None:
    found = read(tmp_path / "f", "Why?\n\n  What for?\n")
    assert questions(found) == ["Why?", "What for?"]
    assert all(arrival.stream and arrival.body["stream"] for arrival in found)
    assert not any(arrival.stream for arrival in read(tmp_path / "f", "Why?\n", stream=False))


@pytest.mark.parametrize("text", [json.dumps([TALK, TALK], indent=1), lines(TALK, TALK)])
def test_conversations_begin_with_a_question_and_hold_the_later_ones(tmp_path: Path, text: str) -> None:
    first, _ = read(tmp_path / "f", text)
    assert [said["role"] for said in first.messages] == ["system", "user"]
    second = first.next_turn(9.0, None)
    assert [said["content"] for said in second.messages] == ["Be brief.", "One?", "1", "Two?"]
    assert first.next_turn(9.0, "mine").messages[2] == {"role": "assistant", "content": "mine"}
    assert (second.turn, second.at, second.later) == (2, 9.0, [])


def test_times_of_the_file_count_unless_a_rate_is_given(tmp_path: Path) -> None:
    text = lines(*({"at": at, "body": {"prompt": "x"}} for at in (0.0, 2.0, 5.0)))
    assert [arrival.at for arrival in read(tmp_path / "f", text)] == [0.0, 2.0, 5.0]
    assert [arrival.at for arrival in read(tmp_path / "f", text, speed=2.0)] == [0.0, 1.0, 2.5]
    assert [arrival.at for arrival in read(tmp_path / "f", text, duration_s=5.0)] == [0.0, 2.0]
    assert [arrival.at for arrival in read(tmp_path / "f", text, rate_per_s=4.0)] != [0.0, 2.0, 5.0]


def test_file_without_times_is_repeated_for_the_wanted_time_at_the_wanted_rate(tmp_path: Path) -> None:
    found = read(tmp_path / "f", "a\nb\n", rate_per_s=20.0, duration_s=100.0)
    assert 1800 < len(found) < 2200
    assert questions(found[:4]) == ["a", "b", "a", "b"]
    assert found == read(tmp_path / "f", "a\nb\n", rate_per_s=20.0, duration_s=100.0)


def test_sample_is_random_without_repetition_and_in_order(tmp_path: Path) -> None:
    text = "".join(f"{n}\n" for n in range(100))
    draws = [questions(read(tmp_path / "f", text, seed=seed, sample=10)) for seed in range(40)]
    numbers = [[int(str(text)) for text in draw] for draw in draws]
    assert all(len(set(draw)) == 10 and draw == sorted(draw) for draw in numbers)
    assert len({tuple(draw) for draw in numbers}) == 40
    assert 40 < sum(map(sum, numbers)) / 400 < 60
    assert len(read(tmp_path / "f", text, sample=1000)) == 100


def test_shuffle_sends_every_request_once_in_another_order(tmp_path: Path) -> None:
    text = "".join(f"{n}\n" for n in range(100))
    found = questions(read(tmp_path / "f", text, shuffled=True))
    assert found != sorted(found, key=lambda said: int(str(said)))
    assert sorted(map(int, map(str, found))) == list(range(100))


def test_compressed_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "f.gz").write_bytes(gzip.compress(b"Why?\n"))
    (found,) = PromptFile(tmp_path / "f.gz", Mix()).arrivals(1)
    assert isinstance(found, Written)


def test_large_document_is_read_in_bounded_memory(tmp_path: Path) -> None:
    talk = json.dumps({"conversations": [{"from": "human", "value": "x" * 10_000}]})
    (tmp_path / "f").write_text(f"[{','.join([talk] * 2000)}]")
    tracemalloc.start()
    try:
        count = sum(1 for _ in PromptFile(tmp_path / "f", Mix()).arrivals(1))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 2000
    assert most < (tmp_path / "f").stat().st_size / 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"prompt": "x"}\n{"prompt": \n', "f:2: unexpected"),
        ('{"prompt": "x"}\nhello\n', "f:2: "),
        ('{"model": "m"}\n', "f:1: the body has none of messages, prompt, input, query: say its API with --api"),
        ('{"url": "/v9/x", "body": {"prompt": ""}}\n', "f:1: url: '/v9/x' is not a path of the API"),
        ('{"at": -1, "body": {"prompt": ""}}\n', "f:1: at: -1 is not a time"),
        ('{"conversations": 1}\n', "f:1: conversations is not a list"),
        ('["one", 2]', "f:element 2: is neither a text nor an object"),
        ('[{"prompt": "x"}, {"prompt"', "f: element 2: .*: the list is cut off, or no JSON"),
        (
            '{"at": 2, "body": {"prompt": ""}}\n{"at": 1, "body": {"prompt": ""}}\n',
            "f: the times are not in order: sort the file, or give --rate",
        ),
    ],
)
def test_wrong_row_is_named_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        read(tmp_path / "f", text)


def test_conversation_in_which_nobody_asks_is_left_out_and_counted_once(tmp_path: Path) -> None:
    asked = '{"conversations": [{"from": "human", "value": "hi"}]}'
    (tmp_path / "f").write_text(f'[{{"conversations": [{{"from": "gpt", "value": "hi"}}]}}, {asked}]')
    left_out = EmptyRows()
    found = PromptFile(tmp_path / "f", Mix(), rate_per_s=100.0, duration_s=1.0, on_empty=left_out.add)
    assert len(list(found.arrivals(1))) > 50
    assert (left_out.rows, left_out.lines) == (1, [1])


def test_prompts_that_begin_with_a_bracket_are_plain_lines(tmp_path: Path) -> None:
    found = read(tmp_path / "f", "[INST] one [/INST]\n[INST] two [/INST]\n")
    assert [one.messages[0]["content"] for one in found] == ["[INST] one [/INST]", "[INST] two [/INST]"]


def test_compressed_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    (tmp_path / "f.gz").write_bytes(gzip.compress(b"one\ntwo\n" * 1000)[:-20])
    with pytest.raises(TraceError, match=r"f.gz: cannot be read: Compressed file ended"):
        list(PromptFile(tmp_path / "f.gz", Mix()).arrivals(1))
