"""Counts prompt tokens exactly, for models with a tokenizer.json in the policy."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gateway.wire import template
from gateway.wire.body.prompt_text import PlainText, flat
from gateway.wire.request import Parsed
from gateway.wire.template import Template

MAX_EXACT_BYTES: Final = 256 * 1024
"""The tokens of longer prompts are estimated: counting takes about 1 ms per 4 kB, and would delay other requests."""
MESSAGE_TOKENS: Final = 5
"""Tokens that are added for each message if there is no chat template, as in ChatML: `<|im_start|>role newline ...
<|im_end|> newline`.
"""
ANSWER_TOKENS: Final = 3
"""Tokens that are added for the beginning of the answer if there is no chat template."""


class TokenizerError(Exception):
    """A tokenizer in the policy cannot be used. The message says why."""


class Tokenizer:
    """Counts the tokens of prompts in the same way as the engine."""

    def __init__(self, tokenizer: Any, chat_template: Template | None) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template

    @classmethod
    def load(cls, path: str) -> Tokenizer:
        """Load a tokenizer.json, and the chat template beside it if there is one. Raises `TokenizerError`."""
        try:
            tokenizers = importlib.import_module("tokenizers")
        except ImportError:
            raise TokenizerError(
                f"{path}: exact prompt lengths need the tokenizers library: pip install 'tailgate[tokenizers]'"
            ) from None
        file = Path(path)
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: cannot be read: {error}") from None
        try:
            tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as malformed:  # noqa: BLE001 - the library raises plain Exception
            raise TokenizerError(f"{path}: is not a tokenizer.json: {malformed}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        try:
            return cls(tokenizer, template.load(file.parent))
        except ValueError as no_template:
            raise TokenizerError(f"{path}: {no_template}") from None

    def count(self, parsed: Parsed) -> int | None:
        """Prompt tokens of a request; None if it has media or is too long to count."""
        if parsed.prompt_exact is not None:
            return parsed.prompt_exact
        if parsed.prompt_bytes > MAX_EXACT_BYTES:
            return None
        read = parsed.api.shape.text
        given = None if read is None else read(parsed.fields)
        if isinstance(given, PlainText):
            return sum(self._length(text, given.special) for text in given.texts) + self._length(given.appended)
        return None if given is None else self._chat(given.messages, given.tools)

    def _chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> int:
        if self._template is not None:
            text = self._template.render(messages, tools)
            if text is not None:
                return self._length(text)
        total = ANSWER_TOKENS + MESSAGE_TOKENS * len(messages)
        total += sum(self._length(flat(v)) for message in messages for k, v in message.items() if k != "role")
        return total + (self._length(flat(tools)) if tools else 0)

    def _length(self, text: str, special: bool = False) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=special).ids) if text else 0


class Tokenizers:
    """Tokenizers by path. A tokenizer is loaded again only if its files have changed, because loading takes a
    second.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[_Stamp, Tokenizer]] = {}

    def take(self, paths: Iterable[str]) -> dict[str, Tokenizer]:
        """The tokenizers of `paths`. All others are forgotten. If `TokenizerError` is raised, nothing is changed."""
        loaded = {}
        for path in dict.fromkeys(paths):
            stamp = _stamp(Path(path))
            before = self._loaded.get(path)
            loaded[path] = before if before and before[0] == stamp else (stamp, Tokenizer.load(path))
        self._loaded = loaded
        return {path: tokenizer for path, (_, tokenizer) in loaded.items()}


_Stamp = tuple[tuple[int, int, int] | None, ...]


def _stamp(path: Path) -> _Stamp:
    """A value that changes if any file of a tokenizer changes."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in (path, *(path.with_name(name) for name in template.FILES)):
        try:
            found = file.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(stamps)
