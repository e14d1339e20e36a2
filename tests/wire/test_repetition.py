"""Answers that repeat themselves are detected in time; similar looking ones are not."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import cycle, islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.answers.repetition import RepetitionDetector
from tests.footprint import footprint

CHARACTERS, REPEATS = 2000, 6
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "a",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
    "are",
    "this",
    "have",
    "from",
    "or",
]


def pieces(text: str, random: Random) -> Iterator[str]:
    """The pieces of a text, like tokens: one to eight characters each."""
    place = 0
    while place < len(text):
        size = random.randint(1, 8)
        yield text[place : place + size]
        place += size


def alarm_at(text: str, seed: int = 1, characters: int = CHARACTERS, repeats: int = REPEATS) -> int | None:
    """Characters until the detection; None: never."""
    guard, said = RepetitionDetector(characters, repeats), 0
    for piece in pieces(text, Random(seed)):
        said += len(piece)
        guard.add(piece)
        if guard.found:
            return said
    return None


def prose(length: int, seed: int = 3) -> str:
    random = Random(seed)
    text = ""
    while len(text) < length:
        text += " ".join(random.choices(WORDS, k=random.randint(5, 15))).capitalize() + ". "
    return text[:length]


def looping(piece: str, length: int) -> str:
    return "".join(islice(cycle(piece), length))


# ---- repeating answers


@pytest.mark.parametrize(
    "piece",
    [
        "the ",
        "I'm sorry, ",
        " and so on and so forth",
        "\u4f60\u597d\u5417",
        "- **Item:** value\n",
        "def f(x):\n    return f(x)\n\n",
        '{"name": "Alice", "age": 30}, ',
        "| Monday | 8:00 | closed |\n",
        "<td></td><tr>\n",
        prose(90),
        prose(500),
        prose(1500),
        "Wait, let me think again.\n----------------------------------------\n" + prose(300),
    ],
)
def test_text_that_loops_is_noticed_after_a_few_repeats(piece: str) -> None:
    before = prose(3000)
    at = alarm_at(before + looping(piece, 40_000))
    assert at is not None
    needed = max(CHARACTERS, REPEATS * len(piece))
    assert needed <= at - len(before) + len(piece)
    assert at - len(before) <= 1.1 * needed + 200


@pytest.mark.parametrize("piece", ["!", ".", "\n", " \n", "0", "A", "-", "ha", "\U0001f600", "0x00, ", "| --- "])
def test_repeated_rule_or_padding_alarms_only_after_four_times_the_length(piece: str) -> None:
    before = prose(1000)
    assert alarm_at(before + looping(piece, 4 * CHARACTERS - 200)) is None
    assert alarm_at(before + looping(piece, 4 * CHARACTERS + 400)) is not None


@settings(max_examples=60, deadline=None)
@given(st.text("abcdef \n.,1", min_size=1, max_size=1500), st.integers(0, 2**32))
def test_loop_of_any_piece_in_any_cut_raises_an_alarm(piece: str, seed: int) -> None:
    assert alarm_at(prose(500) + looping(piece, 7 * CHARACTERS + 3000), seed) is not None


def test_repetition_that_ended_within_an_answer_raises_no_alarm() -> None:
    assert alarm_at(prose(2000) + looping("no, wait: ", CHARACTERS - 100) + prose(20_000)) is None


# ---- answers that only look repeating


def _base64(random: Random) -> str:
    return base64.encodebytes(random.randbytes(24_000)).decode()


def _base64_of_a_bitmap(random: Random) -> str:
    rows = [bytes(40) + random.randbytes(8) + bytes(160) for _ in range(150)]
    return base64.b64encode(b"".join(rows)).decode()


def _table(random: Random) -> str:
    rows = [f"| row {n} | {random.randint(0, 3)} | yes | no | n/a | |\n" for n in range(800)]
    return "| name | a | b | c | d | e |\n|---|---|---|---|---|---|\n" + "".join(rows)


def _empty_table(_: Random) -> str:
    return "| date | what | how much |\n|---|---|---|\n" + "|   |   |   |\n" * 150


def _csv(random: Random) -> str:
    return "".join(f"{n},{random.choice((0, 1))},0.0,0.0,0.0,,,,,\n" for n in range(1500))


def _counting(_: Random) -> str:
    return "".join(f"{n}. The quick brown fox jumps over the lazy dog, as before.\n" for n in range(1, 500))


def _code(random: Random) -> str:
    names = [f"{a}_{b}" for a in WORDS for b in WORDS]
    return "".join(
        f"    def test_{name}(self) -> None:\n        self.assertEqual({name}({random.randint(0, 9)}), None)\n\n"
        for name in names[:300]
    )


def _switch(_: Random) -> str:
    return "".join(f"        case {n}:\n            return handle(state);\n            break;\n" for n in range(300))


def _hex_dump(random: Random) -> str:
    lines = []
    for n in range(0, 8000, 16):
        row = random.randbytes(4) + bytes(12)
        lines.append(f"{n:08x}  {row.hex(' ')}  |................|\n")
    return "".join(lines)


def _zeros(_: Random) -> str:
    return json.dumps([[0.0] * 20 for _ in range(70)])


def _contents(random: Random) -> str:
    """A table of contents, as read from a scan."""
    return "".join(f"{random.choice(WORDS).title()} {'.' * 90} {n * 3}\n" for n in range(200))


def _scan(random: Random) -> str:
    """A form, as read from a scan: lines, blanks, wrong letters."""
    rows = ["_" * 70, " " * 60 + "l", "Narne: " + "_" * 40, "|I|l|1|" * 9, "\u25a1 yes  \u25a1 no"]
    return "".join(f"{random.choice(rows)}{random.choice(('', ' ', '.', ','))}\n" for _ in range(700))


def _rules(_: Random) -> str:
    return ("-" * 800 + "\n" + "=" * 800 + "\n" + "* " * 400 + "\n") * 3 + prose(500)


def _indented(_: Random) -> str:
    return " " * 3000 + "x\n" + "\n" * 500 + "\t" * 500


def _song(_: Random) -> str:
    chorus = "We sing it once, we sing it twice, and then we sing it all again,\n" * 4
    return "".join(prose(400, seed=n) + "\n" + chorus for n in range(12))


def _deep(_: Random) -> str:
    return '{"next": ' * 200 + "null" + "}" * 200


LOOK_ALIKES = [
    _base64, _base64_of_a_bitmap, _table, _empty_table, _csv, _counting, _code, _switch, _hex_dump, _zeros, _contents,
    _scan, _rules, _indented, _song, _deep,
]  # fmt: skip


@pytest.mark.parametrize("made", LOOK_ALIKES)
def test_text_resembling_a_loop_raises_no_alarm(made: object) -> None:
    assert callable(made)
    for seed in range(5):
        assert alarm_at(made(Random(seed)), seed) is None


def test_repetition_detector_memory_is_bounded() -> None:
    guard = RepetitionDetector(CHARACTERS, REPEATS)
    empty = footprint(guard)
    random = Random(1)
    for _ in range(3000):
        guard.add(random.choice(WORDS) * 9)
    full = footprint(guard)
    guard.add(prose(200_000))
    assert max(full, footprint(guard)) <= empty + REPEATS * CHARACTERS + 1000


def test_empty_pieces_change_no_repetition_state() -> None:
    guard = RepetitionDetector(CHARACTERS, REPEATS)
    empty = footprint(guard)
    for _ in range(10_000):
        guard.add("")
    assert not guard.found
    assert footprint(guard) == empty
