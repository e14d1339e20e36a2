"""For any bytes of a replica: one answer or one error, no hang, no harm to others. The long form: `mutate.py`."""

from __future__ import annotations

import pytest

from tests.foreign.invented import invented
from tests.foreign.mutate import Case, run

FIRST = 0
EXAMPLES = 200
AT_ONCE = 50


@pytest.mark.parametrize("first", range(FIRST, FIRST + EXAMPLES, AT_ONCE))
def test_mutated_replica_answer_gives_its_client_one_answer_or_one_error(first: int) -> None:
    wrong: dict[int, list[str]] = {}

    def tell(seed: int, case: Case, found: list[str]) -> None:
        wrong[seed] = [case.script.name, *found]

    run(range(first, first + AT_ONCE), tell)
    assert wrong == {}


@pytest.mark.parametrize("first", range(FIRST, FIRST + EXAMPLES, AT_ONCE))
def test_invented_replica_answer_gives_its_client_one_answer_or_one_error(first: int) -> None:
    wrong: dict[int, list[str]] = {}

    def tell(seed: int, case: Case, found: list[str]) -> None:
        wrong[seed] = found

    run(range(first, first + AT_ONCE), tell, invented)
    assert wrong == {}
