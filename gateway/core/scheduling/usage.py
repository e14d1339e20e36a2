"""Replaces token counts of an engine that are impossible: more tokens than the request allowed, or than its bytes can
hold. Compares possible counts of cached tokens with the prediction.

A count that is too high would use up a tenant's tokens for hours, and mislead the parts that learn from it. A count
beyond its bound is replaced by an estimate. The bounds are generous, since tighter ones would reject true counts.

    output    the tokens granted to each choice, which its tenant has reserved
              without a cap for the engine: the same, or `TOKENS_PER_EVENT` for each event, if that is more
    prompt    two tokens for each byte of the body (byte-level vocabularies have one at most; a dense picture in
              base64 may have more), and `TEMPLATE_TOKENS` for each prompt: templates have words of their own
    cached    the tokens of the prompt

A count of 0 for a prompt that is not empty is none: some engines fill usage with zeros.
"""

from __future__ import annotations

from typing import Final

from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import AttemptResult

SLACK_TOKENS: Final = 16
"""Tokens allowed beyond the cap, for each choice: its end token, and the rest of a speculative step."""
TOKENS_PER_EVENT: Final = 64
"""Most tokens believed for one event. Engines that stream in intervals send some tens of tokens in one event."""
TOKENS_PER_BYTE: Final = 2
TEMPLATE_TOKENS: Final = 16_384

BYTES_PER_TOKEN: Final = 4
"""Bytes that count as one output token, in answers without usage whose content cannot be read."""


def tokens_in(body_bytes: int) -> int:
    """Estimated output tokens of an answer with a body of this size."""
    return body_bytes // BYTES_PER_TOKEN


def told_output(output_tokens: int | None, content_came: bool) -> int | None:
    """The output count that an engine reported. A 0 is taken as None if content came, because some engines fill usage
    with zeros.
    """
    return None if output_tokens == 0 and content_came else output_tokens


def believed(attempt: Attempt, result: AttemptResult) -> AttemptResult:
    """`result` without impossible counts; the same object if none is impossible."""
    output, prompt = result.output_tokens, result.prompt_tokens
    state = attempt.state
    if output is not None and output > _max_output(state, max(attempt.tokens, result.tokens_seen)):
        output = None
    if prompt is not None and (prompt > _max_prompt(state) or (not prompt and state.request.prompt_bytes)):
        prompt = None
    cached = result.cached_tokens
    if cached is not None and cached > (_max_prompt(state) if prompt is None else prompt):
        cached = None
    reasoning = result.reasoning_tokens
    if reasoning is not None and (output is None or reasoning > output):
        reasoning = None
    if output == result.output_tokens and prompt == result.prompt_tokens and cached == result.cached_tokens:
        result.reasoning_tokens = reasoning
        return result
    return AttemptResult(
        result.end,
        prompt,
        output,
        result.tokens_seen,
        result.status,
        result.retry_after_s,
        result.body_hash,
        result.empty,
        cached,
        result.context_tokens,
        result.answer_id,
        reasoning,
    )


def compare_cached(attempt: Attempt, result: AttemptResult) -> None:
    """Compare the prompt tokens that were expected in the engine's prefix cache with the tokens that it found there."""
    evidence, estimate = attempt.replica.cache.evidence, attempt.prompt_tokens
    prompt = result.prompt_tokens or estimate
    affinity = attempt.state.request.affinity
    prefix = affinity.prefix
    if prefix.size and not prefix.has_media and result.prompt_tokens and affinity.stored is None:
        evidence.measured(prefix.size, result.prompt_tokens)
    evidence.predicted_tokens += attempt.predicted_of(prompt)
    if result.cached_tokens is not None:
        evidence.answered(prompt, attempt.indexed_tokens * prompt // estimate, result.cached_tokens)


def _max_output(state: RequestState, seen: int) -> int:
    granted = (state.max_tokens + SLACK_TOKENS) * state.request.choices
    return granted if state.is_capped else max(granted, TOKENS_PER_EVENT * seen)


def _max_prompt(state: RequestState) -> int:
    request = state.request
    most = TOKENS_PER_BYTE * max(request.body_bytes, request.prompt_bytes) + TEMPLATE_TOKENS * request.batch
    stored = request.affinity.stored
    before = 0 if stored is None else stored.tokens
    return before + max(most, request.prompt_exact or 0)
