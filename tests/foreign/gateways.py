"""An event loop with a gateway for each kind of tier."""

from __future__ import annotations

from typing import Final

from tests.foreign.loop import VirtualLoop
from tests.foreign.play import problems, problems_elsewhere
from tests.foreign.script import Script
from tests.foreign.world import World, watched

Kind = tuple[bool, bool]
"""Whether it aggregates, and whether it hedges."""
TWO_REPLICAS: Final[Kind] = (False, True)


class Gateways:
    """An event loop with one gateway for each kind of tier. A gateway is not used again after a violation."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self._worlds: dict[Kind, World] = {}

    async def world(self, kind: Kind) -> World:
        """The gateway of that kind."""
        world = self._worlds.get(kind)
        if world is None:
            aggregate, hedged = kind
            world = self._worlds[kind] = World(self.loop, aggregate, hedged)
            if hedged:
                await world.warm()
        self.loop.connect = world.replicas.connect
        return world

    async def play(self, script: Script, cut: str, kind: Kind) -> list[str]:
        """The violations."""
        world = await self.world(kind)
        with watched(self.loop) as seen:
            found = await problems(world, script, cut, *kind)
        found += [f"logged: {line}" for line in seen]
        if found:
            self.drop(kind)
        return found

    async def play_elsewhere(self, script: Script) -> list[str]:
        """The violations with a second, healthy replica."""
        world = await self.world(TWO_REPLICAS)
        with watched(self.loop) as seen:
            found = await problems_elsewhere(world, script)
        found += [f"logged: {line}" for line in seen]
        if found:
            self.drop(TWO_REPLICAS)
        return found

    def drop(self, kind: Kind) -> None:
        """Discard that gateway."""
        self._worlds.pop(kind).close()

    def close(self) -> None:
        """Leave nothing behind."""
        for world in self._worlds.values():
            world.close()
        self.loop.close()
