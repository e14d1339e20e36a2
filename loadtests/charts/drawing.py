"""Draws pictures in a process of its own, beside other work.

Importing matplotlib and drawing the pictures of a report takes as long as all other work on a million requests. So one
process imports matplotlib early, and is later forked for each core.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from subprocess import PIPE, Popen

from loadtests.charts.chart import Picture
from loadtests.charts.png import PART, draw, get_ready


class NotDrawn(Exception):
    """The drawing process failed; its standard error has the reason."""


@contextmanager
def drawing(folder: Path) -> Iterator[Callable[[Sequence[Picture]], None]]:
    """Yields a function that draws pictures as `folder/NAME.png`. Call it once; leaving the block waits for the
    pictures.

    Raises NotDrawn. An error of the block itself ends the drawing.
    """
    command = sys.executable, "-m", "loadtests.charts.drawing", f"{folder}"
    # A process group of its own: Ctrl-C is for this process, which then ends the group.
    process = Popen(command, stdin=PIPE, process_group=0)
    parts: set[Path] = set()

    def hand_over(pictures: Sequence[Picture]) -> None:
        parts.update(folder / f"{picture.name}{PART}" for picture in pictures)
        _hand_over(process, pictures)

    try:
        yield hand_over
        if status := _ended(process):
            raise NotDrawn(f"pictures are missing in {folder}: drawing them ended with status {status}")
    except BaseException:
        # The process and its forks may have ended already; macOS then reports a lack of permission.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
        _ended(process)
        for part in parts & set(folder.glob(f"*{PART}")):
            part.unlink(missing_ok=True)
        raise


def _ended(process: Popen[bytes]) -> int:
    """Wait for the process to end; returns its exit status."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has failed; its exit status says so
        process.stdin.close()
    return process.wait()


def _hand_over(process: Popen[bytes], pictures: Sequence[Picture]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # as above
        pickle.dump(pictures, process.stdin)
        process.stdin.flush()


def main() -> None:
    """Draw the pictures that arrive on standard input; nothing if it ends at once."""
    gc.disable()  # loaded modules stay until the end, which is soon
    folder = Path(sys.argv[1])
    get_ready()
    try:
        pictures: list[Picture] = pickle.load(sys.stdin.buffer)
    except EOFError:
        return
    status = 1
    try:
        draw_all(pictures, folder)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        # All is written. An orderly exit of matplotlib takes as long as a picture. And if the second fork failed, it
        # would wait for the first one for ever.
        os._exit(status)


def draw_all(pictures: Sequence[Picture], folder: Path) -> None:
    """Draw each as `folder/NAME.png`, on all cores."""
    cores = min(_cores(), len(pictures))
    if cores <= 1:
        for picture in pictures:
            draw(picture, folder)
        return
    with ProcessPoolExecutor(cores, mp_context=get_context("fork")) as pool:
        list(pool.map(partial(draw, folder=folder), pictures))


def _cores() -> int:
    """Cores that this process may use.

    Outside of Linux it is one, since libraries that numpy loaded may not be forked there.
    """
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


if __name__ == "__main__":
    main()
