"""Downloads the peers of tailgate into an ignored folder of the checkout, or into the cache of the user."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests import CHECKOUT, ROOT

FOLDER = ROOT / ".bench" if CHECKOUT else Path.home() / ".cache" / "tailgate"
VLLM_ROUTER = "vllm-router==0.1.17"
LITELLM = "litellm[proxy]==1.106.2"
AIPERF = "aiperf==0.13.0"
GUIDELLM = "guidellm==0.8.1"
"""Pinned, so that figures of different days compare with the same version."""


@contextmanager
def alone(tell: Callable[[str], None]) -> Iterator[None]:
    """A lock: one bench at a time in a checkout. Two would disturb each other and share files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another bench is running: waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Skipped(Exception):
    """A target cannot be measured on this machine. The text says why."""


def vllm_router() -> Path:
    """Install vllm-router in a virtual environment of its own. Returns its command. Raises Skipped."""
    return _in_venv("vllm-router", VLLM_ROUTER)


def litellm() -> Path:
    """LiteLLM's proxy, likewise. Raises Skipped."""
    return _in_venv("litellm", LITELLM)


def aiperf() -> Path:
    """Install aiperf, NVIDIA's load tester, likewise. Raises Skipped."""
    return _in_venv("aiperf", AIPERF)


def _in_venv(name: str, package: str) -> Path:
    home = FOLDER / name
    stamp = home / package
    if not stamp.exists():
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        _run([str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", package])
        stamp.touch()
    return home / "bin" / name


def installed_nginx() -> Path | None:
    """nginx from PATH, or from where packages put it."""
    usual = "/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin:/opt/homebrew/bin"
    found = shutil.which("nginx", path=usual) or shutil.which("nginx")
    return Path(found) if found else None


def nginx() -> Path:
    """The installed nginx, or one unpacked from Debian's package without installing it. Raises Skipped."""
    if found := installed_nginx():
        return found
    home = FOLDER / "nginx"
    command = home / "usr" / "sbin" / "nginx"
    if not command.exists():
        if shutil.which("apt-get") is None:
            raise Skipped("nginx is not on PATH and there is no apt-get to fetch it with")
        home.mkdir(parents=True, exist_ok=True)
        _run(["apt-get", "download", "nginx"], home)
        _run(["dpkg-deb", "--extract", *map(str, home.glob("nginx_*.deb")), "."], home)
        _run([str(command), "-v"])
    return command


def wrk() -> list[str]:
    """The command of wrk: from PATH, or unpacked from Debian's packages like nginx. Raises Skipped."""
    if found := shutil.which("wrk"):
        return [found]
    home = FOLDER / "wrk"
    if not (home / "usr").exists():
        if shutil.which("apt-get") is None:
            raise Skipped("wrk is not on PATH and there is no apt-get to fetch it with")
        home.mkdir(parents=True, exist_ok=True)
        _run(["apt-get", "download", "wrk", "libluajit-5.1-2"], home)
        for package in home.glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(package), "."], home)
    libraries = {str(library.parent) for library in home.glob("usr/lib/**/libluajit-*.so.*")}
    return ["env", f"LD_LIBRARY_PATH={':'.join(sorted(libraries))}", str(home / "usr" / "bin" / "wrk")]


def _run(command: list[str], folder: Path | None = None) -> None:
    """Run a command. Raises Skipped with the last line of its output if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise Skipped(f"{Path(command[0]).name} {' '.join(command[1:3])} failed: {said[-1]}")
