"""Bodies so long that they are parsed in parts: other work goes on in between, and what is held is let go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.proxy.body_intake import WHOLE_BYTES, BodyIntake
from tests.interpreted import interpreted
from tests.proxy.playbook import Called, FromClient, FromReplica, Leaves, Play, ToClient, Wait, body, post, whole

pytestmark = interpreted

LONG = "x" * WHOLE_BYTES
ROOM = {"max_body_bytes": 2 * WHOLE_BYTES, "max_receiving_bytes": 3 * WHOLE_BYTES}
LATER = Wait(5.0)
"""Longer than all turns and the pauses between them."""


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[BodyIntake]:
    """Grows with each turn."""
    seen: list[BodyIntake] = []
    run = BodyIntake.run

    def counted(intake: BodyIntake) -> None:
        seen.append(intake)
        run(intake)

    monkeypatch.setattr(BodyIntake, "run", counted)
    return seen


def test_long_body_is_parsed_in_several_turns_and_counts_until_it_is_placed(
    play: Callable[..., Play], turns: list[BodyIntake]
) -> None:
    given = body(messages=[{"role": "user", "content": LONG}])
    played = play(**ROOM)(FromClient(post(given)), Called())
    assert played.limits.part_bytes == len(given)
    played(LATER, Called("arrive 1"), FromReplica(whole()), ToClient(b"hello"))
    assert len(turns) == 5, "counted, read, checked, written, placed"
    assert played.meter.records[0].request.body_bytes == len(given)


def test_body_of_a_few_megabytes_takes_one_turn(play: Callable[..., Play], turns: list[BodyIntake]) -> None:
    play(**ROOM)(FromClient(post(user=LONG[:100_000])), LATER, ToClient(b"HTTP/1.1 400"))
    assert len(turns) == 1


def test_long_body_that_is_no_json_is_refused_in_its_turn(play: Callable[..., Play]) -> None:
    play(**ROOM)(FromClient(post(b"{" + LONG.encode())), LATER, Called(), ToClient(b"HTTP/1.1 400", b"not JSON"))


def test_long_count_of_tokens_is_parsed_in_turns(play: Callable[..., Play], turns: list[BodyIntake]) -> None:
    asked = post(messages=[{"role": "user", "content": LONG}], path="/v1/messages/count_tokens")
    play(**ROOM)(FromClient(asked), LATER, ToClient(b"HTTP/1.1 200", b"input_tokens"))
    assert len(turns) == 5


def test_client_that_leaves_between_two_parts_leaves_nothing_behind(
    play: Callable[..., Play], turns: list[BodyIntake], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(**ROOM)
    monkeypatch.setattr("gateway.proxy.turns.SHARE", 1e-6)  # each part is followed by a pause that never ends
    played(FromClient(post(messages=[{"role": "user", "content": LONG}])))
    assert len(turns) == 1
    played(Leaves, Called())
    assert not played.limits.parts
