"""The watch understands the pages of emulated replicas."""

from __future__ import annotations

import random

import pytest

from gateway.core.sample import Sample
from gateway.fleet.board import ModelBoard
from gateway.fleet.watch import FleetWatcher
from loadtests.emulator import Emulator

from .replicas import policy, pool, until, watched


async def test_health_load_and_models_of_emulated_replicas_are_read() -> None:
    async with Emulator(profile="test", replicas=2) as emulator:
        rules = policy(pool(*emulator.urls))
        samples: list[tuple[str, Sample]] = []
        board = ModelBoard(0)
        watcher = FleetWatcher(
            lambda name, sample: samples.append((name, sample)),
            board,
            clock=lambda: 0.0,
            random=random.Random(1),
            on_bug=lambda error: pytest.fail(str(error)),
            is_out=lambda _: False,
        )
        async with watched(watcher, rules):
            for name in ("main-0", "main-1"):
                await until(lambda name=name: (name, Sample(healthy=True)) in samples)
                idle = Sample(
                    waiting=0,
                    running=0,
                    kv_fraction=0.0,
                    preemptions=0,
                    cache_queries=0,
                    cache_hits=0,
                    generated_tokens=0,
                )
                await until(lambda name=name, idle=idle: (name, idle) in samples)
            await until(lambda: board.known(rules.pools["main"]) == {emulator.settings.model})
            assert board.max_model_len(rules.pools["main"], emulator.settings.model) == emulator.profile.max_model_len
            assert all(not report.errors for report in watcher.reports())
