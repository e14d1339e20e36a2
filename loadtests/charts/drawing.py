"""Pictures drawn beside other work, in a process that starts before there is anything to draw.

Importing matplotlib and drawing the pictures of a report takes as long as all other work on a million requests.
matplotlib is imported once; the process that has done so is then forked for each core.
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
    """The drawing process failed; it has said why on standard error."""


@contextmanager
def drawing(folder: Path) -> Iterator[Callable[[Sequence[Picture]], None]]:
    """Yields a function, to be called once, that draws pictures as `folder/NAME.png`; leaving the block waits for them.

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
        # It may have ended by itself, and so have those that it had forked; macOS then says that it is not ours.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
        _ended(process)
        for part in parts & set(folder.glob(f"*{PART}")):
            part.unlink(missing_ok=True)
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
    status = 1
    try:
        draw_all(pictures, folder)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        # All is written. To take matplotlib down in order takes as long as a picture, and where the second fork has
        # failed, the first would be waited for without end.
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

    One on other systems than Linux: libraries that numpy loaded may not be forked there.
    """
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


if __name__ == "__main__":
    main()
