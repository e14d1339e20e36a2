"""Rules of names and comments in Python source that a program can check; `tests.prose` has those of sentences."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.prose import faults

MAX_PARAMETERS = 6
MAX_FILES = 18  # in one folder
MAX_LINES = 350  # of one file; 250 is the goal of the style
STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "to",
        "in",
        "is",
        "it",
        "its",
        "for",
        "and",
        "or",
        "this",
        "that",
        "be",
        "as",
        "by",
        "on",
        "at",
        "with",
        "from",
    ]
)
CONSTANT = re.compile(r"_*(LEAST|MOST)_")
# public in spite of the underscore, in `os` and in the SDKs of OpenAI and Anthropic
DOCUMENTED = ("_exit", "_request_id")
VAGUE = re.compile(r"test_(it|what)_")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def classes_twice(sources: Mapping[Path, str]) -> list[str]:
    """Class names that occur more than once, each with its files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path))
    return [f"class {name} twice: {', '.join(paths)}" for name, paths in sorted(found.items()) if len(paths) > 1]


def crowded(paths: Iterable[Path]) -> dict[str, int]:
    """Folders with more than `MAX_FILES` Python files, with their number."""
    count: dict[Path, int] = defaultdict(int)
    for path in paths:
        count[path.parent] += 1
    return {folder.as_posix(): files for folder, files in sorted(count.items()) if files > MAX_FILES}


def long_files(sources: Mapping[Path, str]) -> dict[str, int]:
    """Files with more than `MAX_LINES` lines, and the number of lines of each."""
    lines = {path.as_posix(): source.count("\n") for path, source in sources.items()}
    return {path: count for path, count in sorted(lines.items()) if count > MAX_LINES}


def constants(source: str) -> list[str]:
    """Names that begin with LEAST_ or MOST_ instead of MIN_ or MAX_."""
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return [
        f"line {name.lineno}: {name.id}: write MIN_ or MAX_"
        for name in names
        if isinstance(name.ctx, ast.Store) and CONSTANT.match(name.id)
    ]


def prose(source: str) -> list[str]:
    """Sentences of docstrings and comments with a banned opening or too many words."""
    found = []
    for line, text in (*((line, text) for line, _, text in docstrings(source)), *comments(source)):
        found += [f"line {line + fault.line - 1}: {fault.rule}: {fault.sentence}" for fault in faults(text)]
    return found


def repeated(source: str) -> list[str]:
    """Docstrings that have no word beyond those of the documented name."""
    found = []
    for line, name, text in docstrings(source):
        said = {_stem(word) for word in re.findall(r"[a-z0-9]+", text.lower())} - STOP_WORDS
        known = {_stem(word) for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}
        if said and said <= known:
            found.append(f"line {line}: the docstring of {name} repeats its name: {text}")
    return found


def parameters(source: str) -> list[str]:
    """Names of functions with more than `MAX_PARAMETERS` parameters beside self and cls.

    Constructors are exempt, and so are the commands of typer, whose parameters declare options.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Function) or node.name == "__init__" or _is_command(node):
            continue
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        names = [argument.arg for argument in given if argument.arg not in ("self", "cls")]
        if len(names) > MAX_PARAMETERS:
            found.append(node.name)
    return found


def vague(source: str) -> list[str]:
    """Tests whose name begins with a pronoun instead of its subject."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    return [f"line {node.lineno}: {node.name}: name the subject" for node in functions if VAGUE.match(node.name)]


def privates(source: str) -> list[str]:
    """Reads of an attribute `_name` of another object, unless a class of the same file has that attribute."""
    tree = ast.parse(source)
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for inner in ast.walk(node):
                if isinstance(inner, Function | ast.ClassDef):
                    own.add(inner.name)
                elif isinstance(inner, ast.Attribute) and _is_self(inner.value):
                    own.add(inner.attr)
                elif isinstance(inner, ast.AnnAssign | ast.Assign):
                    targets = [inner.target] if isinstance(inner, ast.AnnAssign) else inner.targets
                    own |= {target.id for target in targets if isinstance(target, ast.Name)}
                elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    own.add(inner.value)  # __slots__
    return [
        f"line {node.lineno}: {ast.unparse(node)} is private"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match(r"_[^_]", node.attr)
        and not _is_self(node.value)
        and node.attr not in own
        and node.attr not in DOCUMENTED
    ]


def docstrings(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and text of each docstring, those of attributes and constants too."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        named = [
            ("" if isinstance(node, ast.Module) else getattr(node, "name", ""), node),
            *((_target(s), s) for s in body),
        ]
        for (name, _), statement in zip(named, body, strict=False):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, name, inspect.cleandoc(text)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment; consecutive lines in a column are one comment."""
    block: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(type:|noqa|pragma|----|!)", token.string):
            continue
        if block and (token.start[0] != block[-1].start[0] + 1 or token.start[1] != block[-1].start[1]):
            yield _comment(block)
            block = []
        block.append(token)
    if block:
        yield _comment(block)


def _comment(block: list[tokenize.TokenInfo]) -> tuple[int, str]:
    return block[0].start[0], "\n".join(token.string.lstrip("#").strip() for token in block)


def _target(statement: ast.stmt) -> str:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Attribute(attr=name)) | ast.Assign(targets=[ast.Attribute(attr=name)]):
            return name
    return ""


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_command(node: Function) -> bool:
    """Whether a parameter is annotated with an option or argument of typer."""
    given = (argument.annotation for argument in (*node.args.args, *node.args.kwonlyargs))
    return any(annotation is not None and "typer." in ast.unparse(annotation) for annotation in given)


def _stem(word: str) -> str:
    return word.lower().removesuffix("s")
