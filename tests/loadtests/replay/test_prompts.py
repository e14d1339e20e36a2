"""Prompts have the wanted length, depend only on the seed, and share the wanted prefixes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.sim.workload.arrivals import Arrival
from loadtests.emulator.text import count_chat
from loadtests.replay.keys import ALL
from loadtests.replay.prompts import Prompts, Sizes, fitted
from loadtests.replay.target import Length, Target, Writer

PROMPTS = Prompts(1)


def asked(arrival: Arrival, length: Length = Length.CAP, **details: Any) -> dict[str, Any]:
    target = Target("http://127.0.0.1:1", length=length, **details)
    _, _, body = Writer(target, PROMPTS).request(3, arrival).partition(b"\r\n\r\n")
    found: dict[str, Any] = orjson.loads(body)
    return found


def arrival(prompt_tokens: int = 50, **details: Any) -> Arrival:
    return Arrival(0.0, "gold", "gold-1", "m", prompt_tokens, 20, **details)


@pytest.mark.parametrize("tokens", [8, 9, 13, 14, 500, 4142, 130_000])
@pytest.mark.parametrize("prefix", [(), (7, 8, 9)])
def test_generated_prompt_has_the_requested_tokens_at_an_emulated_replica(tokens: int, prefix: tuple[int, ...]) -> None:
    assert count_chat(asked(arrival(tokens, prefix=prefix))["messages"]) == tokens


def test_generated_prompts_follow_the_seed() -> None:
    assert Prompts(1).text(5, 100) == PROMPTS.text(5, 100) != Prompts(2).text(5, 100)


def test_generated_prompts_have_different_beginnings() -> None:
    beginnings = {PROMPTS.text(number, 200)[:40] for number in range(2000)}
    assert len(beginnings) == 2000


def test_blocks_with_the_same_hash_have_the_same_words() -> None:
    one, two = PROMPTS.text(1, 1200, (5, 6)), PROMPTS.text(2, 1200, (5, 9))
    same = 512 * 4
    assert one[: same - 1] == two[: same - 1]
    assert one[same : same + 40] != two[same : same + 40]


@pytest.mark.parametrize("per_word", [0.5, 1.0, 1.5, 2.0])
def test_generated_block_has_as_many_words_as_the_target_counts_512_tokens_for(per_word: float) -> None:
    prompts = Prompts(1, Sizes(0.0, per_word))
    one, two = (prompts.text(number, 1024, (7, number)).split() for number in (8, 9))
    alike = [a == b for a, b in zip(one, two, strict=True)]
    assert len(one) == round(1024 / per_word)
    # Different blocks may have equal words by chance.
    assert all(alike[: round(512 / per_word)])
    assert sum(alike[round(512 / per_word) :]) < len(one) / 10


def test_prompt_that_is_all_shared_prefix_is_the_same_for_every_request() -> None:
    assert PROMPTS.text(1, 1000, (5, 6)) == PROMPTS.text(2, 1000, (5, 6))


def test_token_counting_of_a_target_is_learned_from_two_prompts() -> None:
    sizes = fitted([(8, 40), (136, 232)])
    assert (sizes.template, sizes.per_word) == (28.0, 1.5)
    assert sizes.words(328) == 200
    with pytest.raises(ValueError, match="0 more tokens"):
        fitted([(8, 40), (136, 40)])


def test_a_prompt_too_short_for_any_chat_has_one_word() -> None:
    assert len(Prompts(1, Sizes(50.0)).text(1, 10).split()) == 1


@pytest.mark.parametrize(
    ("length", "fields"),
    [
        (Length.CAP, {"max_tokens": 20}),
        (Length.EXACT, {"max_tokens": 20, "min_tokens": 20, "ignore_eos": True}),
        (Length.HIDDEN, {"min_tokens": 20}),
    ],
)
def test_answer_length_mode_sets_max_tokens_min_tokens_and_ignore_eos(length: Length, fields: dict[str, Any]) -> None:
    found = asked(arrival(), length)
    assert {name: found[name] for name in ("max_tokens", "min_tokens", "ignore_eos") if name in found} == fields


def test_replay_body_holds_model_options_and_prompt() -> None:
    found = asked(arrival(stream=False), model="other", extra={"temperature": 0})
    assert (found["model"], found["temperature"], "stream" in found) == ("other", 0, False)
    assert asked(arrival())["stream_options"] == {"include_usage": True}


def test_replayed_request_has_the_key_of_its_tier() -> None:
    target = Target("http://127.0.0.1:1", keys={"gold": ("g",), ALL: ("k",)})
    assert b"authorization: Bearer g\r\n" in Writer(target, PROMPTS).request(1, arrival())
    assert target.key_of("free", "free-1") == "k"


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert b"\r\nhost: [::1]:8080\r\n" in Writer(Target("http://[::1]:8080"), PROMPTS).request(1, arrival())


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://x:1/v1/chat/completions", "http://x/?a=1"])
def test_bad_target_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"http://127.0.0.1:8080|leave out"):
        Target(url)


def test_retry_count_header_counts_earlier_tries() -> None:
    writer = Writer(Target("http://127.0.0.1:8080"), PROMPTS)
    assert b"x-stainless-retry-count" not in writer.request(1, arrival())
    assert b"\r\nx-stainless-retry-count: 2\r\n\r\n" in writer.request(1, arrival(), tries=3)
