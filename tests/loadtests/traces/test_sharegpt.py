"""Conversations in ShareGPT's form become turns that share the beginnings of their prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.trace_formats import TraceRow
from gateway.sim.workload.traces import Mix, open_trace
from loadtests.traces.sharegpt import ShareGptRows, is_sharegpt

from .test_convert import converted

LONG = "All ships sail to the island. " * 200


def said(*parts: str) -> dict[str, object]:
    """A conversation in which human and model take turns."""
    turns = [{"from": ("human", "gpt")[i % 2], "value": part} for i, part in enumerate(parts)]
    return {"id": "x", "conversations": turns}


def written(tmp_path: Path, *talks: object) -> Path:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(talks, indent=1))
    return path


def rows(path: Path) -> list[TraceRow]:
    return list(ShareGptRows(path).rows())


def test_each_sharegpt_answer_becomes_a_request_with_the_conversation_before_it(tmp_path: Path) -> None:
    path = written(tmp_path, said("Hello, how are you?", "Fine." * 8, "And now?", "Still fine." * 4))
    first, second = rows(path)
    assert is_sharegpt(path)
    assert (first.output_tokens, second.output_tokens) == (10, 11)
    assert first.prompt_tokens == -(-len("human: Hello, how are you?\n") // 4)
    assert second.prompt_tokens > first.prompt_tokens + first.output_tokens
    assert first.session == second.session == 0
    assert second.at > first.at + 10 * 0.03, "it is read before it is answered"


def test_turns_share_the_blocks_of_the_turns_before_and_equal_beginnings_share_theirs(tmp_path: Path) -> None:
    one, two = said(LONG, LONG, "Why?", "So."), said(LONG, "Short.", "Why?", "So.")
    other = said("Another beginning. " + LONG, "Yes.")
    found: dict[int, list[TraceRow]] = {}
    for row in rows(written(tmp_path, one, two, other)):
        found.setdefault(row.session or 0, []).append(row)
    first, second = found[0]
    assert len(first.prefix) == first.prompt_tokens // 512 > 1
    assert second.prefix[: len(first.prefix)] == first.prefix
    assert len(second.prefix) > len(first.prefix)
    assert found[1][0].prefix == first.prefix
    assert not set(found[2][0].prefix) & set(first.prefix)


def test_requests_come_in_the_order_of_their_times_though_conversations_overlap(tmp_path: Path) -> None:
    found = rows(written(tmp_path, *(said(f"Question {n}", LONG, "More?", "No.", "Really?", "No.") for n in range(40))))
    assert [row.at for row in found] == sorted(row.at for row in found)
    assert [row.session for row in found] != sorted(row.session or 0 for row in found)
    assert len(found) == 120


def test_converted_sharegpt_trace_is_read_with_sessions_and_blocks(tmp_path: Path) -> None:
    talks = [said(LONG, "Yes.", "Why?", "So."), said("Nobody answers."), {"conversations": []}]
    done = converted(written(tmp_path, *talks), out=tmp_path / "out.jsonl")
    assert done.exit_code == 0
    assert "2 requests, sharegpt to tailgate" in done.stderr
    assert "2 conversations are left out" in done.stderr
    found: list[Arrival] = list(open_trace(tmp_path / "out.jsonl", Mix()).arrivals(1))
    assert next(arrival.at for arrival in found) == 0.0
    assert found[1].prefix[: len(found[0].prefix)] == found[0].prefix != ()


def test_sharegpt_system_prompts_count_and_unknown_speakers_are_text(tmp_path: Path) -> None:
    talk = {"conversations": [{"from": "system", "value": "x" * 400}, *said("Hello?", "Yes.")["conversations"]]}
    (row,) = rows(written(tmp_path, talk))
    assert row.prompt_tokens > 100


@pytest.mark.parametrize(
    "text",
    [
        '[{"conversations": 7}]',
        '[{"conversations": [{"value": "x"}]}]',
        '[{"conversations"',
        '[{"conversations": [{"from": "human", "value": "\xff is no UTF-8"}]}]',
        '[{"conversations": [], "more": ' + "[" * 50_000,
    ],
    ids=["no list", "nobody", "cut", "no UTF-8", "nested"],
)
def test_malformed_sharegpt_document_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_bytes(text.encode("latin-1"))
    done = converted(path, out=tmp_path / "out.jsonl")
    assert done.exit_code == 2
    assert "sharegpt.json" in done.stderr.replace("\n", "")
    assert not (tmp_path / "out.jsonl").exists()
