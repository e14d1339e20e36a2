"""Has a checkout's `import gateway` find the compiled modules, as long as they are made from what is in the checkout.

`deploy.compiling.checkout` copies this file into site-packages as `tailgate_compiled.py`, where a .pth file imports it
at every start of Python: it imports little, and looks at no source before somebody imports the gateway.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

HOME = os.path.join(sys.prefix, "tailgate-compiled")
LIBRARIES = ("tailgate_inner__mypyc", "tailgate_outer__mypyc")
PURE = ("1", "true", "yes", "on")


class Finder:
    """Only for the gateway of the checkout that was compiled; any other one is found as always."""

    def __init__(self) -> None:
        self._folder: str | None = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "gateway" and path is None:
            return self._gateway()
        if name in LIBRARIES and self._folder is not None:
            return PathFinder.find_spec(name, [self._folder])
        return None

    def _gateway(self) -> ModuleSpec | None:
        source = PathFinder.find_spec("gateway")
        if source is None or source.origin is None or os.environ.get("TAILGATE_PURE", "").strip().lower() in PURE:
            return None
        root = os.path.dirname(os.path.dirname(os.path.realpath(source.origin)))
        folder, changed = compiled_of(root)
        if changed is not None:
            sys.stderr.write(
                f"tailgate: {changed} is not as it was compiled: all of it runs interpreted, at twice the CPU"
                " (make setup compiles it again, TAILGATE_PURE=1 says that this is meant)\n"
            )
        if folder is None:
            return None
        from importlib.util import spec_from_file_location

        self._folder = folder
        place = os.path.join(folder, "gateway")
        return spec_from_file_location(
            "gateway", os.path.join(place, "__init__.py"), submodule_search_locations=[place]
        )


def compiled_of(root: str) -> tuple[str | None, str | None]:
    """The folder with the compiled package of this checkout, and otherwise a file that differs, if any was compiled."""
    try:
        with open(os.path.join(HOME, "manifest"), encoding="utf-8") as file:
            checkout, build, *lines = file.read().split("\n")
    except FileNotFoundError:
        return None, None
    if checkout != root:
        return None, None
    known = {}
    for line in lines:
        size, modified, digest, name = line.split(" ", 3)
        known[name] = (int(size), int(modified), digest)
    changed = _changed(root, known)
    return (None, changed) if changed is not None else (os.path.join(HOME, build), None)


def _changed(root: str, known: dict[str, tuple[int, int, str]]) -> str | None:
    seen = 0
    for name in files(root):
        entry = known.get(name)
        path = os.path.join(root, name)
        now = os.stat(path)
        if entry is None or entry[0] != now.st_size or (entry[1] != now.st_mtime_ns and entry[2] != digest_of(path)):
            return name
        seen += 1
    return None if seen == len(known) else next(name for name in known if not os.path.exists(os.path.join(root, name)))


def files(root: str) -> list[str]:
    """Every file of the package, relative to `root`."""
    found, folders = [], ["gateway"]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}"
                if not entry.is_dir():
                    found.append(name)
                elif entry.name != "__pycache__":
                    folders.append(name)
    return sorted(found)


def digest_of(path: str) -> str:
    """Of a file whose time alone is another, as after a change of branches and back."""
    from hashlib import sha256

    with open(path, "rb") as file:
        return sha256(file.read()).hexdigest()


def install() -> None:
    """Called by the .pth file, which Python 3.11 reads twice in a virtual environment."""
    if not any(isinstance(each, Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, Finder())
