"""Fields that had another name before. The old name still works, and `tailgate check` gives the new one."""

from __future__ import annotations

from typing import Final

from gateway.policy.document import Document
from gateway.policy.errors import write_path

TIERS: Final = {"keep_alive": "sse_comments"}
"""New names of the fields of a tier, by their old names."""


def rename(document: Document) -> tuple[str, ...]:
    """Give all fields their new names. Returns a note for each old name. If a tier has both, that is an error."""
    tiers = document.data.get("tiers") if isinstance(document.data, dict) else None
    found = []
    for name, tier in tiers.items() if isinstance(tiers, dict) else ():
        for old, new in TIERS.items():
            if not isinstance(tier, dict) or old not in tier:
                continue
            path = ("tiers", name, old)
            if new in tier:
                document.add(path, f"is the old name of {new}: remove it", at_key=True)
            else:
                tier[new] = tier[old]
                document.marks[(*path[:2], new)] = document.marks[path]
                if path in document.unusable:
                    document.unusable.add((*path[:2], new))
                found.append(f"{write_path(path)}: is called {new} now: rename it")
            del tier[old]
    return tuple(found)
