"""Reads a YAML text as plain values, with the line of each value, and replaces `${ENV}`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.policy.errors import Path, PolicyError, write_path

# Limit on the number of values that come from aliases and merges: they can make a small text expand without end
# ("billion laughs"). A policy repeats a mapping of ten fields in some tiers and pools, so that hundreds are many.
MAX_REPEATED = 10_000
_TAG = "tag:yaml.org,2002:"
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")


@dataclass(frozen=True, slots=True)
class Mark:
    """The place of a value (lines count from 1), and its spelling there: `${NAME}`, not the variable's value."""

    key_line: int
    line: int
    written: str


@dataclass(slots=True)
class Document:
    """The content of a file. `errors`: errors found while reading. `unusable`: paths that have no value because of an
    error.
    """

    file: str
    data: object = None
    marks: dict[Path, Mark] = field(default_factory=dict)
    errors: list[PolicyError] = field(default_factory=list)
    unusable: set[Path] = field(default_factory=set)
    old_names: tuple[str, ...] = ()
    """A note for each field that is written with an old name."""

    def mark(self, path: Path) -> Mark | None:
        """The mark of `path`, or else of the nearest value around it that the file has."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path)

    def add(self, path: Path, message: str, *, at_key: bool = False) -> None:
        """Add an error at `path`, unless the value there is missing because of an earlier error."""
        if self.usable(path):
            self.errors.append(self.error(path, message, at_key=at_key))

    def error(self, path: Path, message: str, *, at_key: bool = False) -> PolicyError:
        """An error at `path`, on the line of its value, or of its key if the key is wrong."""
        mark = self.mark(path)
        line = 0 if mark is None else mark.key_line if at_key or path not in self.marks else mark.line
        return PolicyError(self.file, line, write_path(path), message)

    def usable(self, path: Path) -> bool:
        """Whether the value at `path` and all values around it could be read."""
        return not any(path[:length] in self.unusable for length in range(len(path) + 1))


def read_text(text: str, file: str, environment: Mapping[str, str]) -> Document:
    """Parse YAML. Syntax errors, repeated keys and unset variables are added to `errors`."""
    document = Document(file, marks={(): Mark(1, 1, "")})
    yaml = YAML(typ="safe", pure=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an anchor may be defined twice: the later definition counts, as YAML says
            root = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        document.errors.append(PolicyError(file, line, "", f"not valid YAML: {error.problem or error.context}"))
    except YAMLError as error:
        document.errors.append(PolicyError(file, 1, "", f"not valid YAML: {str(error).splitlines()[0]}"))
    except RecursionError:
        document.errors.append(PolicyError(file, 1, "", "not valid YAML: nested too deeply"))
    else:
        if root is not None:
            document.data = _Reader(document, environment).value(root, (), root)
    return document


class _Reader:
    """Converts YAML nodes to plain values. Lines and errors are written into the document."""

    def __init__(self, document: Document, environment: Mapping[str, str]) -> None:
        self._document = document
        self._environment = environment
        self._inside: list[Node] = []
        self._read_before: set[int] = set()
        """Ids of the nodes that have been read. An alias gives the same node again."""
        self._repeated = 0

    def value(self, node: Node, path: Path, key: Node) -> object:
        written = node.value if isinstance(node, ScalarNode) else ""
        # The mark of a missing value is at the next token, so the key's mark is used instead.
        start = key if node.start_mark.index == node.end_mark.index else node
        self._document.marks[path] = Mark(key.start_mark.line + 1, start.start_mark.line + 1, written)
        if self._is_too_often(node):
            return None
        if any(node is outer for outer in self._inside):
            self._refuse(path, "contains itself through an alias")
            return None
        self._inside.append(node)
        try:
            return self._read(node, path)
        finally:
            self._inside.pop()

    def _is_too_often(self, node: Node) -> bool:
        """Whether `node` was read before, and the limit on such values is reached. Then the document is unusable."""
        if id(node) in self._read_before:
            self._repeated += 1
            if self._repeated == MAX_REPEATED:
                line = node.start_mark.line + 1
                what = f"repeats more than {MAX_REPEATED} values by aliases, such as those of line {line}"
                self._refuse((), f"{what}: repeat less")
        self._read_before.add(id(node))
        return self._repeated >= MAX_REPEATED

    def _read(self, node: Node, path: Path) -> object:
        kind = _kind(node)
        if kind is None:
            self._refuse(path, f"the tag {node.tag} is not supported: write a plain value")
            return None
        if isinstance(node, MappingNode):
            return {name: self.value(item, (*path, name), key) for name, key, item in self._items(node, path)}
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, index), item) for index, item in enumerate(node.value)]
        try:
            return self._scalar(kind, str(node.value), path)
        except ValueError:
            self._refuse(path, f"is not a valid {kind}")
            return None

    def _items(self, node: MappingNode, path: Path, merging: tuple[Node, ...] = ()) -> Iterator[tuple[str, Node, Node]]:
        """(name, key, value) of each entry. Entries that are merged by `<<` come last, and do not override others."""
        first: dict[str, Node] = {}
        merged: list[MappingNode] = []
        for key, item in node.value:
            if _kind(key) == "merge":
                merged += self._sources(item, path)
            elif not isinstance(key, ScalarNode):
                self._error_at(key, path, "a key must be a plain word")
            elif key.value in first:
                line = first[key.value].start_mark.line + 1
                self._error_at(key, (*path, key.value), f"is written twice, first on line {line}: keep one of them")
            else:
                first[key.value] = key
                yield key.value, key, item
        for source in merged:
            if any(source is outer for outer in (*self._inside, *merging)):
                self._refuse(path, "merges itself through an alias")
            if self._is_too_often(source) or not self._document.usable(path):
                return
            for name, key, item in self._items(source, path, (*merging, source)):
                if self._is_too_often(source):
                    return
                if name not in first:
                    first[name] = key
                    yield name, key, item

    def _sources(self, item: Node, path: Path) -> list[MappingNode]:
        nodes = item.value if isinstance(item, SequenceNode) else [item]
        if all(isinstance(node, MappingNode) for node in nodes):
            return list(nodes)
        self._error_at(item, path, "<< merges mappings only, such as <<: *name")
        return []

    def _scalar(self, kind: str, text: str, path: Path) -> object:
        match kind:
            case "null":
                return None
            case "bool":
                return ("false", "true").index(text.lower()) == 1
            case "int":
                return _whole(text)
            case "float":
                return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
            case _:
                return self._interpolated(text, path)

    def _interpolated(self, text: str, path: Path) -> str | None:
        missing: list[str] = []

        def replacement(found: re.Match[str]) -> str:
            if found[0] == "$${":
                return "${"
            name, default = found[1], found[2]
            value = self._environment.get(name) if name else None
            if default is not None:
                return value or default
            if value is None:
                missing.append(name or "")
            return value or ""

        filled = _VARIABLE.sub(replacement, text)
        for name in missing:
            if name:
                self._refuse(path, f"the environment variable {name} is not set: set it, or write ${{{name}:-default}}")
            else:
                self._refuse(path, "${ starts a variable: write ${NAME} or ${NAME:-default}, or $${ for the characters")
        return None if missing else filled

    def _refuse(self, path: Path, message: str) -> None:
        self._document.errors.append(self._document.error(path, message))
        self._document.unusable.add(path)

    def _error_at(self, node: Node, path: Path, message: str) -> None:
        line = node.start_mark.line + 1
        self._document.errors.append(PolicyError(self._document.file, line, write_path(path), message))


def _kind(node: Node) -> str | None:
    """The kind of a node according to its tag: str, int, map...; None for an application's own tag."""
    tag = node.tag or ""
    return tag.removeprefix(_TAG) if tag.startswith(_TAG) else None


def _whole(text: str) -> int:
    plain = text.replace("_", "")
    try:
        return int(plain, 10)
    except ValueError:
        return int(plain, 0)
