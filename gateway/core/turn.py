"""The turn: one call of the controller, shared by the parts that work on it."""

from __future__ import annotations

import math

from gateway.core.commands import Command


class Turn:
    """When the call under way was made, and the commands that answer it so far.

    `commands` stays after the call: a caller that catches an exception of it finds there what was decided before.
    """

    __slots__ = ("commands", "now")

    def __init__(self) -> None:
        self.now = -math.inf
        self.commands: list[Command] = []

    def begin(self, now: float) -> list[Command]:
        """A call at `now` (seconds of the monotonic clock); its commands go into the list that is returned."""
        self.now = now
        self.commands = []
        return self.commands
