"""Pictures drawn beside other work, in processes that get ready while there is nothing to draw yet.

What matplotlib takes to be imported and to draw the pictures of a report is as much as all other work on a million
requests.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen

from loadtests.charts.chart import Picture
from loadtests.charts.png import draw, get_ready

PROCESSES = 2


class NotDrawn(Exception):
    """A process could not draw; it has said why on standard error."""


@contextmanager
def drawing(folder: Path) -> Iterator[Callable[[Sequence[Picture]], None]]:
    """Gives a function, to be called once, that has pictures drawn as `folder/NAME.png`; leaving waits for them.

    Raises NotDrawn. An error of the block itself ends the drawing.
    """
    command = sys.executable, "-m", "loadtests.charts.drawing", f"{folder}"
    # A process group of their own: Ctrl-C is for this process, which then ends them.
    processes = [Popen(command, stdin=PIPE, process_group=0) for _ in range(PROCESSES)]
    try:
        yield lambda pictures: _hand_over(processes, pictures)
        statuses = _ended(processes)
    except BaseException:
        for process in processes:
            process.terminate()
        _ended(processes)
        raise
    if any(statuses):
        raise NotDrawn(f"pictures are missing in {folder}: drawing them ended with status {max(statuses, key=abs)}")


def _ended(processes: Sequence[Popen[bytes]]) -> list[int]:
    """With which status each one has, after its last picture."""
    for process in processes:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has failed, which its status says
            process.stdin.close()
    return [process.wait() for process in processes]


def _hand_over(processes: Sequence[Popen[bytes]], pictures: Sequence[Picture]) -> None:
    for n, process in enumerate(processes):
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # as above
            pickle.dump(pictures[n :: len(processes)], process.stdin)
            process.stdin.flush()


def main() -> None:
    """Draw what comes on standard input; nothing, where that ends at once."""
    folder = Path(sys.argv[1])
    get_ready()
    try:
        pictures: list[Picture] = pickle.load(sys.stdin.buffer)
    except EOFError:
        return
    for picture in pictures:
        draw(picture, folder)


if __name__ == "__main__":
    main()
