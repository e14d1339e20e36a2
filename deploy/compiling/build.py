"""Builds the compiled modules into a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from deploy.compiling import finder
from deploy.compiling.sources import fingerprint, modules


class CannotCompileError(Exception):
    """With what the compilers said."""


PROGRESS = "progress: "
"""Begins the lines of compile_modules.py that are for people."""


def build(root: Path, target: Path, tell: Callable[[str], None] = lambda said: None) -> None:
    """The compiled modules of the package in `root`, without their sources, into `target`. Uses what a checkout has.

    `tell`: called with the progress. Raises CannotCompileError.
    """
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
        errors = ""
        with subprocess.Popen(
            [sys.executable, str(program), str(out), *modules(root)],
            cwd=copy,
            env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as compiling:
            assert compiling.stdout is not None
            for line in compiling.stdout:
                if line.startswith(PROGRESS):
                    tell(line.removeprefix(PROGRESS).rstrip())
                else:
                    errors += line
        if compiling.returncode:
            raise CannotCompileError(errors[-3000:])
        shutil.copytree(out, target, dirs_exist_ok=True)
