"""The console page, and the HTTP headers with which browsers let the page only show the state."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

PARTS: Final = {
    "/* style */": ("page.css",),
    "/* scripts */": ("elements.js", "charts.js", "now.js", "lists.js", "page.js"),
}
"""Places in the page, and the files that stand there."""


@dataclass(frozen=True, slots=True)
class Page:
    """One self-contained HTML page."""

    html: str
    headers: Mapping[str, str]

    @classmethod
    def load(cls) -> Page:
        """Load the page from the files beside this one, and put its style and its scripts into it. Only these may run.
        Their hashes allow them.
        """
        folder = files("gateway.observe.console")
        html = folder.joinpath("page.html").read_text("utf-8")
        for place, names in PARTS.items():
            found = "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)
            html = html.replace(place, found)
        policy = (
            f"default-src 'none'; connect-src 'self'; script-src {_hash(html, 'script')}; "
            f"style-src {_hash(html, 'style')}; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }
        return cls(html, headers)


def _hash(html: str, element: str) -> str:
    found = re.search(f"<{element}>(.*?)</{element}>", html, re.DOTALL)
    assert found, f"page.html has no {element}"
    digest = hashlib.sha256(found[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
