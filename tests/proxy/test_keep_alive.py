"""A comment is sent shortly before the allowed silence of a stream is over, never after it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.core.results import Callback
from gateway.proxy.keep_alive import KeepAlives, is_due
from gateway.proxy.limits import SWEEP_S


class Stream:
    """Sends data at given times, and comments when due; records the times of comments."""

    def __init__(self, owner: KeepAlives, silence_s: float, says_at: tuple[float, ...]) -> None:
        self._owner = owner
        self._silence_s = silence_s
        self._says_at = says_at
        self.comments: list[float] = []
        self.bugs: list[Exception] = []
        owner.start(self, silence_s, 0.0)

    def keep_alive(self, now: float) -> None:
        self._owner.start(self, self._silence_s, now)
        said_at = max([0.0, *self.comments, *(at for at in self._says_at if at <= now)])
        if is_due(said_at, self._silence_s, now):
            self.comments.append(now)

    def broke(self, callback: Callback, error: Exception) -> None:
        self.bugs.append(error)


@pytest.mark.parametrize("silence_s", [2.0, 5.0, 15.0])
@pytest.mark.parametrize("says_at", [(), (0.3, 7.1), (4.9,)], ids=str)
def test_keep_alive_comment_is_sent_in_the_last_quarter_of_the_allowed_silence(
    silence_s: float, says_at: tuple[float, ...]
) -> None:
    owner = KeepAlives()
    stream = Stream(owner, silence_s, says_at)
    end_s = 10 * silence_s
    for sweep in range(int(end_s / SWEEP_S)):
        owner.sweep(sweep * SWEEP_S)
    times = sorted((0.0, *says_at, *stream.comments, end_s))
    for before, after in pairwise(times):
        assert after - before <= silence_s + 4 * SWEEP_S
        if after in stream.comments:
            assert after - before > 0.75 * silence_s
    assert len(stream.comments) >= 8 - len(says_at)
    assert stream.bugs == []
