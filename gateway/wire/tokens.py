"""Exact prompt lengths, for models whose policy names a tokenizer.json."""

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
"""Above this, counting would delay other requests (about 1 ms per 4 kB), so the learned estimate is used."""
MESSAGE_TOKENS: Final = 5
"""Without a template: `<|im_start|>role newline ... <|im_end|> newline`, ChatML's overhead for each message."""
ANSWER_TOKENS: Final = 3
"""and of the opening of the answer."""


class TokenizerError(Exception):
    """A tokenizer that the policy names cannot be used; the message says why."""


class Tokenizer:
    """Counts the tokens of prompts like the engine."""

    def __init__(self, tokenizer: Any, chat_template: Template | None) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template

    @classmethod
    def load(cls, path: str) -> Tokenizer:
        """Read a tokenizer.json, and the chat template beside it if there is one; raises `TokenizerError`."""
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
        """Prompt tokens of a request; None if they are unknown: for media, and for prompts too long to count."""
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
    """Tokenizers by path. Each is read again only if it, or a file beside it, has changed: reading takes a second."""

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[_Stamp, Tokenizer]] = {}

    def take(self, paths: Iterable[str]) -> dict[str, Tokenizer]:
        """The tokenizers of `paths`; all others are forgotten. After a `TokenizerError` nothing has changed."""
        loaded = {}
        for path in dict.fromkeys(paths):
            stamp = _stamp(Path(path))
            before = self._loaded.get(path)
            loaded[path] = before if before and before[0] == stamp else (stamp, Tokenizer.load(path))
        self._loaded = loaded
        return {path: tokenizer for path, (_, tokenizer) in loaded.items()}


_Stamp = tuple[tuple[int, int, int] | None, ...]


def _stamp(path: Path) -> _Stamp:
    """A value that changes with every file of a tokenizer."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in (path, *(path.with_name(name) for name in template.FILES)):
        try:
            found = file.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(stamps)
