"""Answers are counted in pieces of any size, and refused if they are not the requested ones."""

from __future__ import annotations

import json

import pytest

from loadtests.bench import canned
from loadtests.bench.answer import Answer, BadAnswer, same_content

STREAM = canned.STREAM_HEAD + canned.STREAM_ROLE + 3 * canned.STREAM_CHUNK + canned.STREAM_FINISH + canned.STREAM_END


def fed(data: bytes, piece: int) -> Answer:
    answer = Answer()
    for start in range(0, len(data), piece):
        answer.feed(data[start : start + piece])
    return answer


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100, 10_000])
def test_bench_reads_a_whole_stream_in_pieces_of_any_size(piece: int) -> None:
    answer = fed(STREAM, piece)
    assert answer.done
    answer.check_stream(3)


@pytest.mark.parametrize("piece", [1, 10_000])
@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (STREAM.replace(canned.STREAM_CHUNK, b"", 1), "5 of 6 events"),
        (STREAM.replace(canned.STREAM_FINISH, canned.STREAM_FINISH + canned.usage_event(3)), "7 of 6 events"),
        (STREAM.replace(b"[DONE]", b"[dONE]"), "dONE"),
        (STREAM.replace(b"200 OK", b"503 No"), "status 503"),
    ],
    ids=["a chunk lost", "usage nobody asked for", "no [DONE]", "an error status"],
)
def test_bench_refuses_a_stream_with_wrong_content(wrong: bytes, what: str, piece: int) -> None:
    with pytest.raises(BadAnswer, match=what.replace("[", r"\[")):
        fed(wrong, piece).check_stream(3)


@pytest.mark.parametrize("piece", [1, 50, 10_000])
def test_bench_reads_plain_answers_one_after_another(piece: int) -> None:
    answer = Answer()
    for _ in range(2):
        for start in range(0, len(canned.ANSWER), piece):
            assert not answer.done
            answer.feed(canned.ANSWER[start : start + piece])
        assert answer.done
        answer.check_plain(canned.ANSWER_BODY_BYTES)
        answer.reset()


def test_bench_refuses_a_wrong_plain_answer_and_quotes_it() -> None:
    with pytest.raises(BadAnswer, match=r"status 404 with 22 bytes instead of 200 with 600.*Not Found"):
        fed(canned.NOT_FOUND, 10_000).check_plain(600)
    with pytest.raises(BadAnswer, match="with 600 bytes instead of 200 with 601"):
        fed(canned.ANSWER, 10_000).check_plain(601)


def test_bench_refuses_an_answer_that_is_not_http() -> None:
    with pytest.raises(BadAnswer, match="not HTTP"):
        Answer().feed(b"SSH-2.0-OpenSSH\r\n\r\n")


def test_bench_compares_content_as_json_and_not_as_bytes() -> None:
    value = json.loads(canned.ANSWER_BODY)
    assert same_content(json.dumps(value, indent=2, sort_keys=True).encode())
    assert not same_content(json.dumps(value | {"model": "another"}).encode())
    assert not same_content(b"upstream connect error")


def test_bench_bodies_have_the_published_sizes() -> None:
    assert len(canned.ANSWER_BODY) == 600
    for stream in (False, True):
        body = canned.request_body(stream=stream, max_tokens=77)
        assert len(body) == 1200
        assert json.loads(body)["max_tokens"] == 77
        assert json.loads(body).get("stream", False) is stream
