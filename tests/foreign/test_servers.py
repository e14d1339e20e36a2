"""Each script through each kind of tier, in pieces of each size; and the coverage of all scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.foreign.gateways import Gateways
from tests.foreign.play import sizes_of
from tests.foreign.script import Ends
from tests.foreign.servers import FLEET


@pytest.fixture(scope="module")
def gateways() -> Iterator[Gateways]:
    gateways = Gateways()
    yield gateways
    gateways.close()


@pytest.mark.parametrize("name", list(FLEET))
def test_answer_of_another_server_has_the_expected_outcome_and_harms_nobody(gateways: Gateways, name: str) -> None:
    script = FLEET[name]

    async def all_of_it() -> dict[str, list[str]]:
        found = {}
        for aggregate in (False, True):
            for hedged in (False, True):
                for cut in sizes_of(script, hedged):
                    wrong = await gateways.play(script, cut, (aggregate, hedged))
                    if wrong:
                        found[f"{'aggregated' if aggregate else 'streamed'}{', hedged' * hedged}, {cut}"] = wrong
        return found

    assert gateways.loop.run_until_complete(all_of_it()) == {}


def test_a_foreign_failure_beside_a_sound_replica_is_answered_there_or_no_worse_than_alone(gateways: Gateways) -> None:
    async def all_of_them() -> dict[str, list[str]]:
        failing = {name: script for name, script in FLEET.items() if script.ends is not Ends.WHOLE}
        assert sum(script.elsewhere for script in failing.values()) >= 12
        wrong = {name: await gateways.play_elsewhere(script) for name, script in failing.items()}
        return {name: found for name, found in wrong.items() if found}

    assert gateways.loop.run_until_complete(all_of_them()) == {}


def test_there_are_enough_scripts_of_each_sort() -> None:
    sorts = Counter(
        "whole" if not script.stream else "stream" for script in FLEET.values() if script.ends is not Ends.REFUSED
    )
    assert len(FLEET) >= 120
    assert sorts["stream"] >= 70
    assert sorts["whole"] >= 25
    assert all(script.source for script in FLEET.values())
