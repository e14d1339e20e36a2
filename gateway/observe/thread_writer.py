"""A thread that writes what the event loop hands over, so that no request waits for a disk."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from queue import SimpleQueue
from typing import Generic, TypeVar

Work = TypeVar("Work")


class ThreadWriter(ABC, Generic[Work]):
    """Hands over work (`flush`) every `every_s` seconds, while `run` runs, and writes it in a thread until it is
    closed.
    """

    def __init__(self, name: str, every_s: float, close_s: float) -> None:
        """`close_s`: seconds that the last writes may take."""
        self._every_s = every_s
        self._close_s = close_s
        self._work: SimpleQueue[Work | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name=name, daemon=True)

    @abstractmethod
    def flush(self) -> None:
        """Hand over what has come since the last time."""

    @abstractmethod
    def _write(self, work: Work) -> None:
        """Write, in the thread."""

    @abstractmethod
    def _end(self) -> None:
        """Close the file, in the thread, after the last write."""

    async def run(self) -> None:
        """Hand over again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            self.flush()

    async def written(self, patience_s: float) -> None:
        """Hand over, and wait until the thread has tried to write it, at most `patience_s` seconds."""
        self.flush()
        tried = threading.Event()
        self._work.put(tried)
        await asyncio.to_thread(tried.wait, patience_s)

    async def aclose(self) -> None:
        """Write what is left, and end the thread."""
        self.flush()
        self._work.put(None)
        await asyncio.to_thread(self._thread.join, self._close_s)

    def _write_all(self) -> None:
        while (work := self._work.get()) is not None:
            if isinstance(work, threading.Event):
                work.set()
            else:
                self._write(work)
        self._end()
