"""Source of the gateway keeps the rules of names, comments and sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.policy.schema import PolicyFile
from tests import names, sizes

ROOT = Path(__file__).resolve().parents[1]


def read(*folders: str) -> dict[Path, str]:
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT): path.read_text("utf-8") for path in paths}


GATEWAY = read("gateway")
LOADTESTS = read("loadtests")
TESTS = read("tests")


def broken(rule: Callable[[str], list[str]], sources: dict[Path, str]) -> str:
    return "\n".join(f"{path}: {fault}" for path, source in sources.items() for fault in rule(source))


def test_no_class_name_occurs_twice_in_the_gateway() -> None:
    assert names.classes_twice(GATEWAY) == []


def test_no_folder_has_too_many_files() -> None:
    assert names.crowded(GATEWAY) == {}


def test_no_file_of_the_gateway_has_too_many_lines() -> None:
    assert names.long_files(GATEWAY) == {}


# They may fall. The commit that raises one names the user who asked for it.
MAX_CORE_LINES = 16_980
MAX_CORE_NUMBERS = 356
MAX_POLICY_FIELDS = 174
MAX_METRICS = 89


def test_core_has_no_more_lines_and_numbers_than_before() -> None:
    core = [source for path, source in GATEWAY.items() if path.is_relative_to("gateway/core")]
    assert sizes.lines(core) <= MAX_CORE_LINES
    assert sum(map(sizes.numbers, core)) <= MAX_CORE_NUMBERS


def test_policy_has_no_more_fields_and_the_gateway_no_more_metrics_than_before() -> None:
    assert sizes.fields(PolicyFile.model_json_schema()) <= MAX_POLICY_FIELDS
    listed = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8").splitlines()
    assert sum(line.startswith("| `tailgate_") for line in listed) <= MAX_METRICS


def test_number_inside_an_expression_is_counted_unless_it_is_plain() -> None:
    assert sizes.numbers("x: Final = 0.3\ny = 1 - 2 * 0.5 * z\nw = z / 7 if on else True\n") == 2


def test_no_function_has_too_many_parameters() -> None:
    assert broken(names.parameters, GATEWAY) == ""


@pytest.mark.parametrize("rule", [names.constants, names.repeated], ids=lambda rule: rule.__name__)
def test_gateway_source_keeps_the_naming_rule(rule: Callable[[str], list[str]]) -> None:
    assert broken(rule, GATEWAY) == ""


def test_docstrings_and_comments_are_plain_english() -> None:
    assert broken(names.prose, GATEWAY | LOADTESTS) == ""


def test_nothing_reads_private_attributes_of_another_object() -> None:
    assert broken(names.privates, GATEWAY | LOADTESTS | TESTS) == ""


def test_names_of_tests_say_their_subject() -> None:
    assert broken(names.vague, TESTS) == ""


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (names.constants, "MAX_BYTES = 1", "MOST_BYTES = 1"),
        (names.constants, "MIN_BYTES: int = 1", "_LEAST_BYTES: int = 1"),
        (names.repeated, 'def pool():\n    """The pool of this model."""', 'def pool():\n    """The pool."""'),
        (names.repeated, 'class HedgeBudget:\n    """Tokens."""', 'class HedgeBudget:\n    """A budget of hedges."""'),
        (names.repeated, 'KEEP_S = 1\n"""Seconds of a journal."""', 'keep_s = 1\n"""Keep s."""'),
        (names.parameters, "def f(self, a, b, c, d, e, f): ...", "def f(a, b, c, d, *, e, f, g): ..."),
        (names.parameters, "def __init__(self, a, b, c, d, e, f, g): ...", "async def f(a, b, c, d, e, f, g): ..."),
        (
            names.parameters,
            "def f(a: Annotated[int, typer.Option()], b, c, d, e, f, g): ...",
            "@cache\ndef f(a, b, c, d, e, f, g): ...",
        ),
        (names.privates, "class A:\n    def f(self, o):\n        self._x = o._x", "y = pool._slots"),
        (names.privates, "y = pool.slots.__class__", "pool._take()"),
        (names.vague, "def test_hedge_is_denied(): ...", "async def test_it_is_denied(): ..."),
        (names.vague, "def test_whatever(): ...", "class TestHedge:\n    def test_what_is_denied(self): ..."),
        (names.prose, "x = 1  # It waits.", "x = 1  # Whoever waits is refused."),
        (names.prose, '"""It waits.\n\nThe slot is free."""', '"""It waits.\n\nWhat is free is taken."""'),
        (names.prose, f"# {'word ' * 20}\n# {'word ' * 9}\n\n# word word", f"# {'word ' * 20}\n# {'word ' * 12}"),
    ],
)
def test_rule_finds_the_bad_source_and_only_that(rule: Callable[[str], list[str]], good: str, bad: str) -> None:
    assert rule(good) == []
    assert len(rule(bad)) == 1


def test_class_name_in_two_files_is_found() -> None:
    one, two = (Path(name) for name in ("a.py", "b.py"))
    assert names.classes_twice({one: "class A: ...", two: "class B: ..."}) == []
    assert names.classes_twice({one: "class A: ...", two: "class A: ..."}) == ["class A twice: a.py, b.py"]


def test_a_file_with_too_many_lines_is_found() -> None:
    files = {Path("a.py"): "x = 1\n" * names.MAX_LINES, Path("b.py"): "x = 1\n" * (names.MAX_LINES + 1)}
    assert names.long_files(files) == {"b.py": names.MAX_LINES + 1}


def test_a_folder_with_too_many_files_is_found() -> None:
    paths = [Path(f"a/{number}.py") for number in range(names.MAX_FILES)]
    assert names.crowded(paths) == {}
    assert names.crowded([*paths, Path("a/b.py")]) == {"a": 19}
