"""A hook of mkdocs: writes llms.txt, the list of all pages for language models (llmstxt.org)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TITLES: dict[str, str] = {}
"""Title by address, of the pages of this build."""


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Note the page."""
    TITLES[page.url] = page.title
    return html


def on_post_build(*, config: Any, **_: Any) -> None:
    """Write the list."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    lines += [f"- [{title}]({url or './'})" for url, title in sorted(TITLES.items())]
    Path(config["site_dir"], "llms.txt").write_text("\n".join(lines) + "\n")
