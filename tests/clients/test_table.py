"""The table in docs/guides/clients.md has all programs, and their lines of configuration."""

from __future__ import annotations

import re

from .programs import FOLDER, PROGRAMS

DOCS = (FOLDER.parents[1] / "docs" / "guides" / "clients.md").read_text("utf-8")


def test_page_of_clients_has_a_row_with_pin_and_checks_for_each_client() -> None:
    table = DOCS.partition("## Capabilities")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [program.row for program in PROGRAMS]


def test_the_page_of_clients_has_the_configuration_of_each() -> None:
    table = DOCS.partition("## Configuration")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\|([^|]+)\|", table, re.MULTILINE))))
    assert named == {program.package for program in PROGRAMS}
