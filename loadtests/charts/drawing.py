"""Pictures drawn beside other work, in a process that gets ready while there is nothing to draw yet.

What matplotlib takes to be imported and to draw the pictures of a report is as much as all other work on a million
requests. It is imported once: for each core, what has done so is forked.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from subprocess import PIPE, Popen

from loadtests.charts.chart import Picture
from loadtests.charts.png import draw, get_ready


class NotDrawn(Exception):
    """The process could not draw; it has said why on standard error."""


@contextmanager
def drawing(folder: Path) -> Iterator[Callable[[Sequence[Picture]], None]]:
    """Gives a function, to be called once, that has pictures drawn as `folder/NAME.png`; leaving waits for them.

    Raises NotDrawn. An error of the block itself ends the drawing.
    """
    command = sys.executable, "-m", "loadtests.charts.drawing", f"{folder}"
    # A process group of its own: Ctrl-C is for this process, which then ends the group.
    process = Popen(command, stdin=PIPE, process_group=0)
    try:
        yield lambda pictures: _hand_over(process, pictures)
        if status := _ended(process):
            raise NotDrawn(f"pictures are missing in {folder}: drawing them ended with status {status}")
    except BaseException:
        with suppress(ProcessLookupError):  # it has ended by itself, and so have those that it had forked
            os.killpg(process.pid, signal.SIGTERM)
        _ended(process)
        raise


def _ended(process: Popen[bytes]) -> int:
    """With which status it has, after its last picture."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has failed, which its status says
        process.stdin.close()
    return process.wait()


def _hand_over(process: Popen[bytes], pictures: Sequence[Picture]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # as above
        pickle.dump(pictures, process.stdin)
        process.stdin.flush()


def main() -> None:
    """Draw what comes on standard input; nothing, where that ends at once."""
    gc.disable()  # what is loaded here stays until the end, which is soon
    folder = Path(sys.argv[1])
    get_ready()
    try:
        pictures: list[Picture] = pickle.load(sys.stdin.buffer)
    except EOFError:
        return
    cores = max(1, min(os.cpu_count() or 1, len(pictures)))
    with ProcessPoolExecutor(cores, mp_context=get_context("fork")) as pool:
        list(pool.map(partial(draw, folder=folder), pictures))
    # All is written. To take matplotlib down in order takes as long as a picture.
    os._exit(0)


if __name__ == "__main__":
    main()
