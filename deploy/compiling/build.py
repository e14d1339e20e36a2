"""Builds the compiled modules into a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.compiling import finder
from deploy.compiling.sources import fingerprint, modules


class CannotCompileError(Exception):
    """With what the compilers said."""


def build(root: Path, target: Path) -> None:
    """The compiled modules of the package in `root`, without their sources, into `target`. Uses what a checkout has."""
    cached = Path(finder.HOME, fingerprint(root))
    if cached.exists():
        for library in cached.rglob("*.so"):
            place = target / library.relative_to(cached)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)
        return
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made, "source")
        # A copy: mypy would read the settings of the project, and write beside the sources.
        shutil.copytree(root / "gateway", copy / "gateway", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        out = Path(made, "out")
        program = Path(__file__).with_name("compile_modules.py")
        done = subprocess.run(
            [sys.executable, str(program), str(out), *modules(root)],
            cwd=copy,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise CannotCompileError(done.stdout[-3000:])
        shutil.copytree(out, target, dirs_exist_ok=True)
