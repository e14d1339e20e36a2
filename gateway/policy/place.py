"""A place in the document of a policy, as checks read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.policy.document import Document
from gateway.policy.errors import Path, plain


@dataclass(frozen=True, slots=True)
class At:
    """A place in a document. Places that do not exist are empty."""

    document: Document
    path: Path = ()
    data: object = None

    def __getitem__(self, name: str) -> At:
        inner = self.data.get(name) if isinstance(self.data, dict) else None
        return At(self.document, (*self.path, name), inner)

    def items(self) -> Iterator[tuple[str, At]]:
        """Name and place of each entry of a mapping."""
        names = self.data if isinstance(self.data, dict) else ()
        return ((name, self[name]) for name in names)

    def entries(self) -> Iterator[At]:
        """The place of each entry of a list."""
        inner = self.data if isinstance(self.data, list) else []
        return (At(self.document, (*self.path, index), item) for index, item in enumerate(inner))

    def names(self) -> dict[str, At]:
        """The entries of a list that are texts."""
        return {entry.data: entry for entry in self.entries() if isinstance(entry.data, str)}

    @property
    def where(self) -> str:
        """The position of this place as text, for an error at another place."""
        mark = self.document.mark(self.path)
        return f"on line {mark.line}" if mark else "before"

    @property
    def shown(self) -> str:
        """The value as it is written in the file, with the names of variables instead of their values."""
        mark = self.document.marks.get(self.path)
        return plain(mark.written if mark else str(self.data))

    def wrong(self, message: str, *, at_key: bool = False) -> None:
        """Add an error at this place."""
        self.document.add(self.path, message, at_key=at_key)
