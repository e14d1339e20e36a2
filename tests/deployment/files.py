"""Reads the files under deploy/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
OVERLAY = DEPLOY / "kubernetes" / "overlays" / "example"

# Any: the contents of YAML have no better type, and the tests check them.
Document = dict[str, Any]


def read_yaml(path: Path) -> Document:
    """The one document of a file."""
    return yaml.safe_load(path.read_text())


def manifest(name: str) -> Document:
    """A manifest of the base."""
    return read_yaml(BASE / f"{name}.yaml")


def environment(container: Document) -> dict[str, str | None]:
    """Environment variables of a container by name; None for a value from a Secret."""
    return {variable["name"]: variable.get("value") for variable in container["env"]}
