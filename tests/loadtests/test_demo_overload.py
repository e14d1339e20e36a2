"""`tailgate demo --overload`: what is played, what its user is told, and that Ctrl-C ends all of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from loadtests import demo_overload
from loadtests.children import Children
from loadtests.demo_overload import Failed, overload_both
from loadtests.demo_text import Served
from loadtests.peers.install import installed_nginx
from loadtests.ports import POLICY
from tests.loadtests.test_demo import Start, alive, start

__all__ = ["start"]


class Played:
    """Instead of the load tester: its command lines, and what each target answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: list[Sequence[str]] = []
        self.statuses: list[int] = []
        self.opened: list[str] = []
        monkeypatch.setattr(demo_overload, "_run", self._run)
        monkeypatch.setattr("webbrowser.open", self.opened.append)

    async def _run(self, command: str, *options: str, fine: tuple[int, ...] = (0,)) -> None:
        self.commands.append((command, *options))
        if command == "run":
            async with httpx.AsyncClient(trust_env=False) as client:
                self.statuses.append((await client.get(options[options.index("--target") + 1])).status_code)


async def _teapot(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 418 teapot\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    writer.close()


async def _overloaded(folder: Path) -> str:
    """The output of an overload. One replica, which answers 418 to everything, also stands for the gateway."""
    async with (
        await asyncio.start_server(_teapot, "127.0.0.1", 0) as replica,
        Children(lambda name, line: None) as children,
    ):
        url = f"http://127.0.0.1:{replica.sockets[0].getsockname()[1]}"
        with (folder / "said").open("w") as said:
            await overload_both(
                children, Served(url, url, (url,), (url,)), POLICY, folder, Console(file=said, width=500)
            )
    return (folder / "said").read_text()


async def test_overload_without_nginx_says_so_and_opens_the_report_of_tailgate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch)
    monkeypatch.setattr(demo_overload, "installed_nginx", lambda: None)
    said = await _overloaded(tmp_path)
    page = tmp_path / "tailgate" / "report.html"
    assert "nginx is not installed." in said
    assert f"The report: {page}" in said
    assert played.opened == [page.as_uri()]
    assert [words[0] for words in played.commands] == ["run"]


@pytest.mark.skipif(installed_nginx() is None, reason="nginx is not installed")
async def test_overload_goes_through_nginx_to_the_same_replicas_and_both_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch)
    said = await _overloaded(tmp_path)
    assert played.statuses == [418, 418]
    ours, beside, compared = played.commands
    assert ours[2] != beside[2]
    assert compared[:3] == ("compare", str(tmp_path / "nginx"), str(tmp_path / "tailgate"))
    assert f"The report: {tmp_path / 'compared.html'}" in said


async def test_failed_load_test_is_told(tmp_path: Path) -> None:
    nowhere = Served("http://127.0.0.1:1", "", (), ())
    async with Children(lambda name, line: None) as children:
        with pytest.raises(Failed, match=r"`tailgate load run` ended with status 1"):
            await overload_both(children, nowhere, POLICY, tmp_path, Console(quiet=True))


async def test_ctrl_c_during_the_overload_ends_all_processes(start: Start) -> None:
    demo = await start("--free-ports", "--overload")
    await demo.prints("Overloading tailgate")
    children = demo.children()
    demo.process.send_signal(signal.SIGINT)
    assert await demo.ends() == 0
    assert alive(children) == []
    assert "Serving" not in demo.text
