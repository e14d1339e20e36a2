"""Real balancers in front of two gateways, with the files of deploy/."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from loadtests.processes import free_port

from .files import DEPLOY

HAPROXY = shutil.which("haproxy")
NGINX = shutil.which("nginx")
needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: apt-get install haproxy")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="needs nginx: apt-get install nginx-light")
READY_S = 30.0
Addresses = Sequence[tuple[str, str]]
"""Host and port of a gateway's API, and the port of its admin API."""
Balancer = Callable[[Path, Addresses], AbstractAsyncContextManager[str]]
"""Starts a balancer; gives its URL. The path is a folder for its files."""


@asynccontextmanager
async def haproxy(folder: Path, gateways: Addresses) -> AsyncIterator[str]:
    """HAProxy with deploy/haproxy/haproxy.cfg."""
    places = {"BIND": f"127.0.0.1:{free_port()}"}
    for number, (api, admin) in enumerate(gateways, 1):
        places |= {f"GATEWAY_{number}": api, f"ADMIN_{number}": admin}
    async with _run([str(HAPROXY), "-f", str(DEPLOY / "haproxy" / "haproxy.cfg"), "-db"], places):
        yield f"http://{places['BIND']}"


@asynccontextmanager
async def nginx(folder: Path, gateways: Addresses) -> AsyncIterator[str]:
    """An nginx with deploy/nginx/nginx.conf, in which the addresses are other ones."""
    text, port = (DEPLOY / "nginx" / "nginx.conf").read_text("utf-8"), free_port()
    for number, (api, _) in enumerate(gateways, 1):
        text = text.replace(f"10.0.0.{number}:8080", api)
    temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy"))
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    (folder / "nginx.conf").write_text(text.replace("http {", f"http {{ access_log off; {temporary}"))
    user = "user root;" if os.getuid() == 0 else ""  # else its workers could not write into the folder
    settings = f"daemon off; pid {folder}/pid; error_log stderr; {user}"
    async with _run([str(NGINX), "-e", "stderr", "-c", str(folder / "nginx.conf"), "-g", settings], {}):
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def _run(command: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environment})
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def listening(url: str) -> None:
    """Wait until a balancer that was just started listens."""
    place = urlsplit(url)
    async with asyncio.timeout(READY_S):
        while True:
            with suppress(ConnectionRefusedError):
                _, writer = await asyncio.open_connection(place.hostname, place.port)
                writer.close()
                return
            await asyncio.sleep(0.02)


async def first_answer(url: str, body: bytes) -> None:
    """Wait until a balancer that was just started listens, and a gateway behind it answers `body` with 200."""
    async with asyncio.timeout(READY_S), httpx.AsyncClient(timeout=READY_S) as client:
        while True:
            with suppress(httpx.TransportError):  # it does not listen yet
                if (await client.post(url, content=body)).status_code == 200:
                    return
            await asyncio.sleep(0.02)
