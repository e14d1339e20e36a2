"""The present call of the controller. All parts that work on the call share it."""

from __future__ import annotations

import math

from gateway.core.commands import Command


class PresentCall:
    """Time of the present call, and the commands decided so far.

    `commands` stays after the call. So if the call raises an exception, its caller still finds the commands decided
    before.
    """

    __slots__ = ("commands", "now")

    def __init__(self) -> None:
        self.now = -math.inf
        self.commands: list[Command] = []

    def begin(self, now: float) -> list[Command]:
        """Begin a call at `now` (seconds of the monotonic clock). Returns the list that gets its commands."""
        self.now = now
        self.commands = []
        return self.commands
