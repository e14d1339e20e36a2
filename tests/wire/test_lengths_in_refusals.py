"""The context and the prompt's tokens that an engine names when it refuses a prompt for its length."""

from __future__ import annotations

import json

import pytest

from gateway.wire.errors.rejected import lengths

TEXTS = [
    # vLLM, from old to new
    (
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the "
        "messages, 10000 in the completion). Please reduce the length of the messages or completion.",
        (16384, 112946),
    ),
    (
        "This model's maximum context length is 4096 tokens. However, your request has 6012 input tokens. Please "
        "reduce the length of the input messages.",
        (4096, 6012),
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 100. This model's maximum context length is 4096 tokens "
        "and your request has 4000 input tokens (100 > 4096 - 4000).",
        (4096, 4000),
    ),
    (
        "This model's maximum context length is 4096 tokens. However, you requested 100 output tokens and your prompt "
        "contains at least 4097 input tokens, for a total of at least 4197 tokens.",
        (4096, None),
    ),
    (
        "You passed 10243 input tokens and requested 6142 output tokens. However, the model's context length is only "
        "16384 tokens, resulting in a maximum input length of 10242 tokens.",
        (16384, 10243),
    ),
    ("The decoder prompt (length 6012) is longer than the maximum model length of 4096.", (4096, 6012)),
    # SGLang
    ("The input (61709 tokens) is longer than the model's context length (40960 tokens).", (40960, 61709)),
    (
        "Requested token count exceeds the model's maximum context length of 64000 tokens. You requested a total of "
        "71897 tokens: 7897 tokens from the input messages and 64000 tokens for the completion.",
        (64000, 7897),
    ),
    # Dynamo
    (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please "
        "reduce the length of the messages.",
        (8192, 9000),
    ),
    # others
    ("Unknown role: This model's maximum context length is 1 tokens", (None, None)),
    ("maximum context length is 10", (None, None)),
    ("This model's maximum context length is 0 tokens", (None, None)),
    ("This model's maximum context length is 99999999999999999999 tokens", (None, None)),
    ("temperature must be at most 2", (None, None)),
]


@pytest.mark.parametrize(("text", "found"), TEXTS)
def test_lengths_are_read_from_the_beginning_of_an_engines_error(
    text: str, found: tuple[int | None, int | None]
) -> None:
    assert lengths(json.dumps({"error": {"message": text, "code": 400}}).encode()) == found
    assert lengths(json.dumps({"object": "error", "message": text}).encode()) == found


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": null}'])
def test_body_without_a_known_error_names_no_lengths(body: bytes) -> None:
    assert lengths(body) == (None, None)
