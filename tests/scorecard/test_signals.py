"""Signals that mean something to other servers do not end the process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .capture import Capture
from .conftest import Connect
from .policies import rules
from .process import serving
from .raw import chat
from .waiting import until


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
async def test_signal_without_a_meaning_is_logged_and_ignored(
    tmp_path: Path, capture: Capture, connect: Connect, number: signal.Signals
) -> None:
    async with serving(tmp_path, rules(capture.url)) as served:
        served.signal(number)
        await until(lambda: f"{number.name} has no meaning here".encode() in served.written)
        client = await connect(served.url)
        assert (await client.ask(chat())).status == 200
