"""Reads a scenario, by its name or from a file."""

from __future__ import annotations

from pathlib import Path

from gateway.policy.document import read_text
from gateway.policy.errors import PolicyError, PolicyErrors, among
from gateway.policy.load import text_of
from gateway.policy.shape import checked
from loadtests.scenarios.checks import check
from loadtests.scenarios.file import ScenarioFile, shipped


def load_scenario(name: str) -> ScenarioFile:
    """The scenario of this name or file. Raises PolicyErrors with all errors."""
    known = shipped()
    path = known.get(name, Path(name))
    if name not in known and not path.exists():
        message = f"is neither a file nor a scenario: {among(name, known)}"
        raise PolicyErrors([PolicyError(name, 0, "", message)])
    document = read_text(text_of(path), str(path), {})

    def add_errors(found: ScenarioFile | None) -> None:
        if found is not None and found.experiment is None:
            check(document, found)

    return checked(document, ScenarioFile, add_errors)
