"""Work in several processes, also with compiled values."""

from __future__ import annotations

import copyreg
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from gateway.core import policy as rules
from gateway.sim.run import fleet
from gateway.sim.run import simulation as engine


@contextmanager
def processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs`. Spawned, not forked, since a progress bar has a thread, and a fork would copy its locks.

    Jobs under way are ended, not awaited, when the block is left by an error or Ctrl-C.
    """
    _make_sendable()
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
            raise


def _make_sendable() -> None:
    """Pickles compiled frozen dataclasses by their constructor: unpickling sets fields, which compiled ones refuse."""
    for module in (rules, engine, fleet):
        if str(module.__file__).endswith(".py"):
            continue
        for kind in vars(module).values():
            if isinstance(kind, type) and is_dataclass(kind):
                copyreg.pickle(kind, _parts)


def _parts(value: Any) -> tuple[type, tuple[object, ...]]:
    return type(value), tuple(getattr(value, field.name) for field in fields(value) if field.init)
