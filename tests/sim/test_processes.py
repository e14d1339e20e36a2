"""Work in other processes does not outlive its caller."""

from __future__ import annotations

import multiprocessing
from threading import Event

import pytest

from gateway.sim.run.processes import processes


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
