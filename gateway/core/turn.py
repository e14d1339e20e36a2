"""The turn: one call of the controller, shared by the parts that work on it."""

from __future__ import annotations

import math

from gateway.core.commands import Command


class Turn:
    """Time of the call under way, and its commands so far.

    `commands` stays after the call, so a caller that catches its exception still finds the commands decided before.
    """

    __slots__ = ("commands", "now")

    def __init__(self) -> None:
        self.now = -math.inf
        self.commands: list[Command] = []

    def begin(self, now: float) -> list[Command]:
        """Begin a call at `now` (seconds of the monotonic clock). Its commands go into the returned list."""
        self.now = now
        self.commands = []
        return self.commands
