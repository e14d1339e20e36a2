"""The files under deploy/, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
OVERLAY = DEPLOY / "kubernetes" / "overlays" / "example"

# Any: what YAML holds has no better type, and the tests are what says what is in it.
Document = dict[str, Any]


def read_yaml(path: Path) -> Document:
    """The one document of a file."""
    return yaml.safe_load(path.read_text())


def manifest(name: str) -> Document:
    """A manifest of the base."""
    return read_yaml(BASE / f"{name}.yaml")


def environment(container: Document) -> dict[str, str | None]:
    """Names and plain values of a container's variables; None for what comes from a Secret."""
    return {variable["name"]: variable.get("value") for variable in container["env"]}
