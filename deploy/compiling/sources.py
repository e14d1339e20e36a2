"""Which modules are compiled, whether they can be here, and what names a build."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PURE = "TAILGATE_PURE"
"""1: interpreted, compile nothing. 0: compile, or fail where that cannot be done. Unset: compile if possible."""


def modules(root: Path) -> list[str]:
    """The files that pyproject.toml has compiled, relative to `root`."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    found: set[str] = set()
    for name in wheel["compile"]:
        place = root / name
        found |= {path.relative_to(root).as_posix() for path in (place.rglob("*.py") if place.is_dir() else [place])}
    return sorted(name for name in found if not name.endswith("/__init__.py") and name not in wheel["interpret"])


def obstacle() -> str | None:
    """Why nothing can be compiled on this machine; None if it can."""
    if "nt" in os.name:
        return "nothing is compiled on Windows"
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        return f"there is no C compiler ({command[0]})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "there are no headers of this Python (Python.h; Debian has them in python3-dev)"
    return None


def wanted() -> bool | None:
    """What TAILGATE_PURE asks for: True compiled or nothing, False interpreted, None compiled if possible."""
    said = os.environ.get(PURE, "").strip().lower()
    return None if not said else said in ("0", "false", "no", "off")


def fingerprint(root: Path) -> str:
    """Names a build by everything that goes into it: sources, this folder, Python, compilers and their flags."""
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()} {_mypy()} {_compiler()}".encode())
    for name in ("CC", "CFLAGS", "LDFLAGS", "LDSHARED"):
        digest.update(f"{name}={os.environ.get(name)}\0".encode())
    for path in [root / "pyproject.toml", *package(root), *sorted((root / "deploy" / "compiling").glob("*.py"))]:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def package(root: Path) -> list[Path]:
    """Every file of the package, sources and data."""
    found = (root / "gateway").rglob("*")
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _mypy() -> str:
    try:
        return version("mypy")
    except PackageNotFoundError:
        return "no mypy"


def _compiler() -> str:
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    said = subprocess.run([*command, "--version"], capture_output=True, text=True)
    return said.stdout.partition("\n")[0]
