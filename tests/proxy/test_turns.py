"""Long work of many callers: one part in each turn of the event loop."""

from __future__ import annotations

import asyncio

from gateway.proxy.turns import Turns


class Work:
    """Work in this many parts; each records its name."""

    def __init__(self, turns: Turns, name: str, parts: int, done: list[str]) -> None:
        self._turns = turns
        self._name = name
        self._left = parts
        self._done = done
        turns.add(self.part)

    def part(self) -> None:
        self._done.append(self._name)
        self._left -= 1
        if self._left:
            self._turns.add(self.part)


async def test_long_tasks_take_turns_with_one_part_for_each_turn_of_the_event_loop() -> None:
    turns = Turns()
    done: list[str] = []
    for name, parts in (("a", 3), ("b", 1), ("c", 3)):
        Work(turns, name, parts, done)
    for turn in range(1, 8):
        await asyncio.sleep(0)
        assert len(done) == turn
    assert done == ["a", "b", "c", "a", "c", "a", "c"]
    Work(turns, "later", 2, done)
    for _ in range(3):
        await asyncio.sleep(0)
    assert done[7:] == ["later", "later"]
