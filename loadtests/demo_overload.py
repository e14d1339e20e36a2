"""`tailgate demo --overload`: the same overload through tailgate and, if it is installed, through nginx."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text

from loadtests.children import Children
from loadtests.demo_text import OVERLOAD, Served
from loadtests.peers.install import installed_nginx
from loadtests.peers.nginx import nginx_command
from loadtests.ports import HOST
from loadtests.processes import free_port

BALANCE = "least_conn;"
NEVER = r"(?!)"
LATE = 3
"""Exit status of a comparison whose generator was late. Its page says so."""
RETRY_S = 0.05


class Failed(Exception):
    """A load test failed. It has said why."""


async def overload_both(children: Children, served: Served, policy: Path, folder: Path, out: Console) -> None:
    """Overload the gateway for two minutes, then nginx before the same replicas, and open the page. Raises Failed.

    Results go into `folder`. The promises of `policy` judge both.
    """
    minutes = "for two minutes, from half to twice of what the replicas can serve"
    _head(out, f"Overloading tailgate {minutes} (watch it: {served.admin}/):")
    page = folder / "tailgate" / "report.html"
    await _load(served.api, policy, page.parent)
    if installed_nginx() is None:
        _head(out, "nginx is not installed. With it, the same overload would go through nginx, too.")
    else:
        _head(out, f"Overloading nginx {minutes}:")
        beside = folder / "nginx"
        await _load(await _nginx(children, served, folder), policy, beside)
        page, tests = folder / "compared.html", (str(beside), str(folder / "tailgate"))
        _head(out, "nginx, tailgate, and the change:")
        await _run("compare", *tests, "--policy", str(policy), "--out", str(page), fine=(0, LATE))
    _head(out, f"The report: {page}")
    webbrowser.open(page.absolute().as_uri())


async def _nginx(children: Children, served: Served, folder: Path) -> str:
    """The URL of an nginx before the replicas for ordinary prompts, which are those that the load uses."""
    port = free_port()
    ports = [urlsplit(url).port or 0 for url in served.ordinary]
    files = (folder / "nginx-files").absolute()
    files.mkdir(parents=True)
    await children.start("nginx", nginx_command(port, ports, files, BALANCE), NEVER)
    while True:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except ConnectionRefusedError:
            await asyncio.sleep(RETRY_S)
        else:
            writer.close()
            return f"http://{HOST}:{port}"


async def _load(url: str, policy: Path, folder: Path) -> None:
    options = ("--target", url, "--policy", str(policy), *OVERLOAD.split(), "--allow-late", "--out", str(folder))
    await _run("run", *options)


async def _run(command: str, *options: str, fine: tuple[int, ...] = (0,)) -> None:
    """Run a command of the load tester, which shows its own progress. Raises Failed."""
    words = (sys.executable, "-m", "loadtests", command, *options)
    # Ctrl-C must reach the demo alone, which ends this process then.
    process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL, process_group=0)
    try:
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if status not in fine:
        raise Failed(f"`tailgate load {command}` ended with status {status}: nothing to show")


def _head(out: Console, text: str) -> None:
    out.print(Text(f"\n{text}", style="bold"))
