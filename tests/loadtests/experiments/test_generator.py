"""The experiment of the load generator reaches the bench's upstream."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import pytest

from loadtests.experiments import generator
from loadtests.experiments.runner import QUICK, Runner


class Reached(Exception):
    """The target answered."""


def test_first_load_of_the_generator_is_for_the_upstream_of_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    def tested(options: Sequence[str], cores: frozenset[int] | None) -> dict[str, object]:
        answer = httpx.post(f"{options[options.index('--target') + 1]}/v1/chat/completions", json={"max_tokens": 1})
        assert answer.json()["object"] == "chat.completion"
        raise Reached

    monkeypatch.setattr(generator, "tested", tested)
    with pytest.raises(Reached):
        generator.generator(Runner(QUICK))
