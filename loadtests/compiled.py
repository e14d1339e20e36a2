"""Tailgate as its wheels have it: the request path compiled by mypyc (docs/adr/0007-compiled-wheels.md).

`python -m loadtests.compiled` compiles and prints the folder, which holds the package and the wheel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from loadtests import ROOT
from loadtests.peers.install import FOLDER

SOURCES = ("pyproject.toml", "README.md", "LICENSE")
FLAGS = "-fvisibility=hidden -fno-plt"
"""Nobody calls into the library by name, so it may call its own functions straight. Also in deploy/Containerfile."""


def is_compiled() -> bool:
    """Whether the gateway that this process would import is the compiled one."""
    from gateway.core import controller

    return not controller.__file__.endswith(".py")


def compiled(tell: Callable[[str], None]) -> Path | None:
    """A folder with the compiled package, made anew when a source has changed; None if it cannot be compiled here."""
    if shutil.which("cc") is None:
        tell("no C compiler here: measuring tailgate as pure Python, which the wheels are not")
        return None
    home = FOLDER / "compiled" / _fingerprint()
    if home.exists():
        return home
    tell("compiling tailgate as for a wheel (a minute or two; once per change)")
    with tempfile.TemporaryDirectory() as copy:
        done = _build(Path(copy))
        wheels = list(Path(copy, "dist").glob("*.whl"))
        if done.returncode or not wheels:
            raise SystemExit(f"the wheel could not be compiled:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        shutil.rmtree(FOLDER / "compiled", ignore_errors=True)
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(home)
        shutil.copy(wheels[0], home)
    return home


def again_with(folder: Path, module: str, arguments: Sequence[str]) -> NoReturn:
    """Run `module` in place of this process, with the compiled package in front of the checkout."""
    path = os.pathsep.join((str(folder), str(ROOT)))
    # Safe path: else the checkout's own package, in the current folder, would come first.
    os.execve(
        sys.executable,
        [sys.executable, "-m", module, *arguments],
        {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path},
    )


def _fingerprint() -> str:
    digest = hashlib.sha256((sys.version + FLAGS).encode())
    for path in sorted([*(ROOT / "gateway").rglob("*.py"), ROOT / "pyproject.toml"]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(copy: Path) -> subprocess.CompletedProcess[str]:
    # In a copy: the compiler leaves what it makes beside the sources, where every later import would find it.
    shutil.copytree(ROOT / "gateway", copy / "gateway", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel"],
        cwd=copy,
        env={"CFLAGS": FLAGS, **os.environ, "HATCH_BUILD_HOOK_ENABLE_MYPYC": "1"},
        capture_output=True,
        text=True,
    )


if __name__ == "__main__":
    made = compiled(lambda said: print(said, file=sys.stderr))
    if made is None:
        sys.exit(1)
    print(made)
