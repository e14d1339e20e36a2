"""Exact prompt lengths: the tokenizer counts like the engine."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.tokens import ANSWER_TOKENS, MAX_EXACT_BYTES, MESSAGE_TOKENS, Tokenizer, TokenizerError, Tokenizers

from .bodies import CHAT, COMPLETION, EMBEDDINGS, MESSAGES, RESPONSES, read

TEMPLATE = (
    "{{ bos_token }}{% if tools %}tools {{ tools | tojson }} {% endif %}"
    "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ m.role }} says {{ m.content }} end {% endfor %}{% if add_generation_prompt %}assistant says{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer of words, which adds <s> in front if special tokens are wanted."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "<s>": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def load(folder: Path, template: object = None, jinja: str | None = None) -> Tokenizer:
    if template is not None:
        config = {"bos_token": {"content": "<s> "}, "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja)
    return Tokenizer.load(str(folder / "tokenizer.json"))


def count(tokenizer: Tokenizer, endpoint: Endpoint, document: dict[str, Any]) -> int | None:
    return tokenizer.count(read(endpoint, document, Caps(media=True)))


@pytest.mark.parametrize(
    ("endpoint", "fields", "tokens"),
    [
        (Endpoint.COMPLETIONS, {"prompt": "one two three four five six"}, 7),
        (Endpoint.COMPLETIONS, {"prompt": "one two", "add_special_tokens": False}, 2),
        (Endpoint.COMPLETIONS, {"prompt": ["one two", "three"]}, 5),
        (Endpoint.COMPLETIONS, {"prompt": "one two", "suffix": "the end"}, 5),
        (Endpoint.COMPLETIONS, {"prompt": [5, 6, 7]}, 3),
        (Endpoint.EMBEDDINGS, {"input": ["one two", "three"]}, 5),
        (Endpoint.EMBEDDINGS, {"input": [[5, 6], [7]]}, 3),
    ],
)
def test_tokens_of_plain_prompts_are_counted(
    folder: Path, endpoint: Endpoint, fields: dict[str, Any], tokens: int
) -> None:
    document = {**(COMPLETION if endpoint is Endpoint.COMPLETIONS else EMBEDDINGS), **fields}
    assert count(load(folder), endpoint, document) == tokens


def test_without_a_template_each_message_costs_a_fixed_overhead(folder: Path) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one two three"}]
    tokens = count(load(folder), Endpoint.CHAT, {**CHAT, "messages": messages})
    assert tokens == 5 + 2 * MESSAGE_TOKENS + ANSWER_TOKENS


def test_without_a_template_tools_and_calls_count_as_json(folder: Path) -> None:
    plain = load(folder)
    before = count(plain, Endpoint.CHAT, CHAT)
    tools = [{"type": "function", "function": {"name": "f", "description": "one two three"}}]
    assert before is not None
    assert count(plain, Endpoint.CHAT, {**CHAT, "tools": tools}) == before + 3


def test_tokenizer_does_not_count_prompts_with_images_or_overlong_text(folder: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    document = {**CHAT, "messages": [{"role": "user", "content": [part]}]}
    assert count(load(folder), Endpoint.CHAT, document) is None
    long = {**COMPLETION, "prompt": "x" * (MAX_EXACT_BYTES + 1)}
    assert count(load(folder), Endpoint.COMPLETIONS, long) is None


CONVERSATIONS: list[tuple[Endpoint, dict[str, Any], str]] = [
    (Endpoint.CHAT, CHAT, "<s> user says hi end assistant says"),
    (
        Endpoint.CHAT,
        {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a b", "c")]}]},
        "<s> user says a b c end assistant says",
    ),
    (
        Endpoint.MESSAGES,
        {**MESSAGES, "system": [{"type": "text", "text": "be brief"}]},
        "<s> system says be brief end user says hi end assistant says",
    ),
    (
        Endpoint.RESPONSES,
        {**RESPONSES, "instructions": "be brief"},
        "<s> system says be brief end user says hi end assistant says",
    ),
    (
        Endpoint.RESPONSES,
        {**RESPONSES, "input": [{"role": "user", "content": "hi"}, {"type": "function_call_output", "output": "42"}]},
        '<s> user says hi end tool says {"type":"function_call_output","output":"42"} end assistant says',
    ),
    (
        Endpoint.MESSAGES,
        {**MESSAGES, "tools": [{"name": "f", "input_schema": {}}]},
        '<s> tools [{"type":"function","function":{"name":"f","parameters":{}}}] user says hi end assistant says',
    ),
]


@pytest.mark.parametrize(("endpoint", "document", "text"), CONVERSATIONS)
@pytest.mark.parametrize("where", ["config", "named", "file"])
def test_tokenizer_counts_a_chat_as_its_template_renders_it(
    folder: Path, endpoint: Endpoint, document: dict[str, Any], text: str, where: str
) -> None:
    pytest.importorskip("jinja2")
    named = [{"name": "default", "template": TEMPLATE}, {"name": "rag", "template": "x"}]
    template = {"config": TEMPLATE, "named": named, "file": "overridden by the file"}[where]
    tokenizer = load(folder, template, TEMPLATE if where == "file" else None)
    assert count(tokenizer, endpoint, document) == len(text.split())


def test_chat_whose_template_fails_is_counted_as_a_plain_sum(folder: Path) -> None:
    pytest.importorskip("jinja2")
    document = {**CHAT, "messages": [{"role": "bad", "content": "one two"}]}
    assert count(load(folder, TEMPLATE), Endpoint.CHAT, document) == 2 + MESSAGE_TOKENS + ANSWER_TOKENS


def test_chat_template_cannot_escape_its_sandbox(folder: Path) -> None:
    pytest.importorskip("jinja2")
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }} {{ messages.append(1) }}"
    assert count(load(folder, escape), Endpoint.CHAT, CHAT) == 1 + MESSAGE_TOKENS + ANSWER_TOKENS


def test_malformed_chat_template_is_reported(folder: Path) -> None:
    pytest.importorskip("jinja2")
    with pytest.raises(TokenizerError, match="chat template is malformed"):
        load(folder, "{% for %}")


def test_unreadable_tokenizer_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.load(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text('{"model": 5}')
    with pytest.raises(TokenizerError, match=r"is not a tokenizer\.json"):
        Tokenizer.load(str(tmp_path / "bad.json"))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.load(str(tmp_path / "binary.json"))


def test_a_tokenizer_is_read_again_only_when_a_file_of_it_has_changed(folder: Path) -> None:
    path = str(folder / "tokenizer.json")
    tokenizers = Tokenizers()
    first = tokenizers.take([path, path])[path]
    assert tokenizers.take([path])[path] is first
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    second = tokenizers.take([path])[path]
    assert second is not first
    with pytest.raises(TokenizerError):
        tokenizers.take([path, str(folder / "none.json")])
    assert tokenizers.take([path])[path] is second
    assert tokenizers.take([]) == {}
    assert tokenizers.take([path])[path] is not second


def test_a_tokenizer_without_its_library_is_an_error_that_names_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(TokenizerError, match=r"pip install 'tailgate\[tokenizers\]'"):
        load(folder)


def test_chat_without_jinja2_is_counted_as_a_plain_sum(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str) -> object:
        if name.startswith("jinja2"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", without)
    assert count(load(folder, TEMPLATE), Endpoint.CHAT, CHAT) == 1 + MESSAGE_TOKENS + ANSWER_TOKENS
