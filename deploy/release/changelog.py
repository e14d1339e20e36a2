"""The version of a release, in pyproject.toml, CHANGELOG.md and the chart."""

from __future__ import annotations

import re

UNRELEASED = "## Unreleased\n"
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


class NotReleasable(Exception):
    """The text says what is missing."""


def released(changes: str, version: str) -> str:
    """The changelog, with the unreleased changes under `version`. Raises NotReleasable if there are none."""
    if not VERSION.fullmatch(version):
        raise NotReleasable(f"VERSION={version} is no version such as 1.2.3 or 1.2.3rc1")
    if f"## {version}\n" in changes:
        raise NotReleasable(f"CHANGELOG.md has {version} already")
    before, found, after = changes.partition(UNRELEASED)
    if not found or not after.partition("\n## ")[0].strip():
        raise NotReleasable(f"CHANGELOG.md has nothing under {UNRELEASED.strip()}")
    return f"{before}## {version}\n{after}"


def bumped(project: str, version: str) -> str:
    """The text of pyproject.toml with this version."""
    changed, count = re.subn(r'(?m)^version = "[^"]*"$', f'version = "{version}"', project)
    assert count == 1, "pyproject.toml has one line with a version"
    return changed


def chart_bumped(chart: str, version: str) -> str:
    """The text of Chart.yaml with this version, of the chart and of the gateway that it installs."""
    changed, count = re.subn(r"(?m)^(version|appVersion): \S+$", rf"\g<1>: {version}", chart)
    assert count == 2, "Chart.yaml has two lines with a version"
    return changed
