"""The documents as a site: every page is in it, and llms.txt lists them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .files import ROOT

PAGES = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]


def test_site_has_every_page_and_lists_all_of_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = re.findall(r"^- \[.+\]\((.+)\)$", (tmp_path / "llms.txt").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed)) == len(PAGES)
    assert all((tmp_path / address / "index.html").exists() for address in listed)
    page = (tmp_path / "guides" / "loadtesting" / "index.html").read_text()
    assert "coordinated" in page
    assert 'href="../../reference/loadtests/"' in page
