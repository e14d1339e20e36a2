"""Compiles a checkout for the Python that runs this: `python -m deploy.compiling`.

The compiled package lies in the virtual environment, never beside the sources. `deploy.compiling.finder` has Python
use it while the sources are those that it was made from.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from deploy.compiling import finder
from deploy.compiling.build import CannotCompileError, build
from deploy.compiling.sources import ROOT, fingerprint, obstacle, package, wanted

KEPT = 3
"""Builds: so that going back to another branch costs nothing."""


def compile_checkout(tell: Callable[[str], None]) -> str | None:
    """Has this Python import the checkout compiled, and compiles it unless that was done. Returns why it cannot be."""
    problem = obstacle()
    if problem is None and sys.prefix == sys.base_prefix:
        problem = "this Python is not of a virtual environment"
    if problem is not None:
        return problem
    home = Path(finder.HOME)
    made = home / fingerprint(ROOT)
    if not made.exists():
        tell("compiling tailgate (once per change; TAILGATE_PURE=1 runs it interpreted)")
        home.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as folder:
            new = Path(folder, "new")
            shutil.copytree(ROOT / "gateway", new / "gateway", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            (new / "policies").symlink_to(ROOT / "policies")  # beside the package, as in the checkout
            try:
                build(ROOT, new, tell)
            except CannotCompileError as error:
                return str(error)
            if fingerprint(ROOT) != made.name:
                return "its sources changed meanwhile"
            new.rename(made)
    os.utime(made)
    publish(ROOT, home, made.name)
    _hook_in(Path(sysconfig.get_path("purelib")))
    for old in sorted((path for path in home.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)[
        :-KEPT
    ]:
        shutil.rmtree(old)
    return None


def publish(root: Path, home: Path, build_name: str) -> None:
    """Has the finder use this build for `root` as it is now."""
    lines = [str(root), build_name]
    for path in package(root):
        now = path.stat()
        digest = finder.digest_of(str(path))
        lines.append(f"{now.st_size} {now.st_mtime_ns} {digest} {path.relative_to(root).as_posix()}")
    _write(home / "manifest", "\n".join(lines))


def _hook_in(packages: Path) -> None:
    _write(packages / "tailgate_compiled.py", Path(finder.__file__).read_text())
    _write(packages / "tailgate_compiled.pth", "import tailgate_compiled; tailgate_compiled.install()\n")


def _write(path: Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        return
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def main() -> int:
    """Exit status 1 only where TAILGATE_PURE=0 asks for compiled code and there is none."""
    must = wanted()
    if must is False:
        return 0
    problem = compile_checkout(lambda said: print(said, file=sys.stderr))
    if problem is None:
        return 0
    print(f"tailgate runs interpreted, at twice the CPU: {problem}", file=sys.stderr)
    return 1 if must else 0
