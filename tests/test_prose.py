"""Pages written by hand are plain English; the ones people read in a hurry are short. Results are not held to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose import MAX_WORDS, faults, sentences

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "deploy" / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if not page.is_relative_to(RESULTS)),
]
MAX_README_WORDS = 900
# As counted by `wc -w`, with the bars of tables. They may fall, and rise only for a user who asks for it.
MAX_DOCS_WORDS = 56_080
MAX_RESULTS_WORDS = 12_170


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_is_plain_english(page: Path) -> None:
    found = faults(page.read_text("utf-8"))
    assert not found, "\n".join(["", *map(str, found)])


def test_readme_is_read_in_five_minutes() -> None:
    assert len(README.read_text("utf-8").split()) <= MAX_README_WORDS


@pytest.mark.parametrize(("folder", "most"), [(DOCS, MAX_DOCS_WORDS), (RESULTS, MAX_RESULTS_WORDS)])
def test_docs_are_short_together(folder: Path, most: int) -> None:
    words = sum(len(page.read_text("utf-8").split()) for page in folder.rglob("*.md"))
    assert 0.9 * most < words <= most


LONG = " ".join(["word"] * MAX_WORDS)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("What is learned stays.", ["banned opening"]),
        ("It waits. Those that wait are refused.", ["banned opening"]),
        ("Of what has not come yet says nothing what is no later than that.", ["banned opening"]),
        ("- **Whoever** waits is refused.", ["banned opening"]),
        ("## What is sent", ["banned opening"]),
        ("What is a slot?", []),
        ("**What would change it.** A faster client.", []),
        (f"{LONG} end.", [f"{MAX_WORDS + 1} words"]),
        (f"{LONG}.", []),
        (f"It waits. {LONG} `a b c`, e.g. [one](two.md).", [f"{MAX_WORDS + 3} words"]),
        (f"| What is | {LONG} {LONG} |", []),
        (f"```text\nWhat is {LONG} {LONG}\n```", []),
        (f"- {LONG}\n- {LONG}", []),
    ],
)
def test_checker_finds_bad_sentences_and_only_these(text: str, rules: list[str]) -> None:
    assert [fault.rule for fault in faults(text)] == rules


def test_checker_names_the_line_after_a_block_of_code() -> None:
    (fault,) = faults("Fine.\n\n```sh\nmake\n```\n\nWhat is here is not.")
    assert fault.line == 7


def test_sentence_ends_neither_at_an_abbreviation_nor_at_an_initial() -> None:
    text = "A law of A. K. Erlang holds, e.g. here (cf. there). Next."
    assert [sentence for _, sentence in sentences(text)] == [text[:-6], "Next."]
