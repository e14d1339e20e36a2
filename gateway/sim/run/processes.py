"""Runs work in several processes. It works with compiled classes, too."""

from __future__ import annotations

import copyreg
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from gateway.core import policy as rules
from gateway.core import pool_spec, slo
from gateway.sim.engine import fleet
from gateway.sim.run import simulation as engine


@contextmanager
def processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` processes. They are spawned, not forked: a fork would copy the locks of a progress bar's thread.

    If the block is left by an error or Ctrl-C, jobs under way are ended at once.
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


@contextmanager
def kept() -> Iterator[None]:
    """Within this block, `shared` starts each pool once. The pools end with the block, as those of `processes` do."""
    with ExitStack() as stack:
        _KEPT.append((stack, {}))
        try:
            yield
        finally:
            _KEPT.pop()


@contextmanager
def shared(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """The kept pool of `jobs` processes within `kept`, and a new one elsewhere."""
    if not _KEPT:
        with processes(jobs) as pool:
            yield pool
        return
    stack, pools = _KEPT[-1]
    if jobs not in pools:
        pools[jobs] = stack.enter_context(processes(jobs))
    yield pools[jobs]


_KEPT: list[tuple[ExitStack, dict[int, ProcessPoolExecutor]]] = []
"""Pools by number of processes, for each `kept` block that is open."""


def _make_sendable() -> None:
    """Let pickle restore compiled frozen dataclasses by their constructor. Normally it sets the fields, which these
    classes refuse.
    """
    for module in (rules, pool_spec, slo, engine, fleet):
        if str(module.__file__).endswith(".py"):
            continue
        for kind in vars(module).values():
            if isinstance(kind, type) and is_dataclass(kind):
                copyreg.pickle(kind, _parts)


def _parts(value: Any) -> tuple[type, tuple[object, ...]]:
    return type(value), tuple(getattr(value, field.name) for field in fields(value) if field.init)
