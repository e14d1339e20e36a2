"""Work in other processes does not outlive its caller."""

from __future__ import annotations

import multiprocessing
import os
from threading import Event

import pytest

from gateway.sim.run.processes import kept, processes, shared


def work_for_ever(_: int) -> None:
    Event().wait()


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError])
def test_running_jobs_end_with_the_process_pool(fault: type[BaseException]) -> None:
    def left_by(fault: type[BaseException]) -> None:
        with processes(2) as pool:
            assert pool.submit(abs, -1).result() == 1
            for number in range(8):
                pool.submit(work_for_ever, number)
            raise fault

    with pytest.raises(fault):
        left_by(fault)
    assert multiprocessing.active_children() == []


def worker() -> int:
    with shared(1) as pool:
        return pool.submit(os.getpid).result()


def test_a_kept_pool_is_used_again_until_its_block_ends() -> None:
    with kept():
        first, second = worker(), worker()
    assert first == second
    assert multiprocessing.active_children() == []


def test_each_caller_has_its_own_pool_where_none_is_kept() -> None:
    assert worker() != worker()
    assert multiprocessing.active_children() == []


def test_running_jobs_of_a_kept_pool_end_if_its_block_fails() -> None:
    def fail() -> None:
        with kept(), shared(1) as pool:
            assert pool.submit(abs, -1).result() == 1
            pool.submit(work_for_ever, 1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert multiprocessing.active_children() == []
