"""Checkers of fields that cost something. They compare the field with the tier's caps.

If a lower value only shortens the answer, the field is clamped. If a lower value would change the form of the answer,
the request is refused.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.wire.body.checks import MAX_INT, BadRequest, array, boolean, integer, only, word, wrong_type

LOG_PROBS: Final = "message.output_text.logprobs"


def output_cap(value: Any, field: str, caps: Caps) -> Any:
    """A number of output tokens. It is clamped to the tier's limit."""
    return min(integer(value, field, 1, MAX_INT), caps.max_tokens_limit)


def output_cap_or_zero(value: Any, field: str, caps: Caps) -> Any:
    """The same for plain completions. With 0, the answer is only the echoed prompt, or its log-probabilities."""
    return min(integer(value, field, 0, MAX_INT), caps.max_tokens_limit)


def min_tokens(value: Any, field: str, caps: Caps) -> Any:
    """A minimum number of output tokens. It is clamped to the number that the request may generate."""
    return min(integer(value, field, 0, MAX_INT), caps.max_tokens_limit)


def choices(value: Any, field: str, caps: Caps) -> Any:
    """`n`, the number of choices. A number above the limit is refused, because an answer with fewer choices would have
    another form.
    """
    return integer(value, field, 1, caps.n, " for this tier")


def best_of(value: Any, field: str, caps: Caps) -> Any:
    """`best_of`: the number of sequences to generate."""
    return integer(value, field, 1, caps.best_of, " for this tier")


def log_probs(value: Any, field: str, caps: Caps) -> Any:
    """`logprobs` of chat completions: a flag. The tier may forbid log-probabilities."""
    if value is True and caps.top_logprobs == 0:
        raise BadRequest(field, "log-probabilities are not available for this tier")
    return boolean(value, field, caps)


def top_log_probs(value: Any, field: str, caps: Caps) -> Any:
    """The number of log-probabilities per token. -1, which means the whole vocabulary in vLLM, is refused."""
    if caps.top_logprobs == 0 and value != 0:
        raise BadRequest(field, "log-probabilities are not available for this tier")
    return integer(value, field, 0, caps.top_logprobs, " for this tier")


def completion_log_probs(value: Any, field: str, caps: Caps) -> Any:
    """`logprobs` of plain completions: a number. 0 still asks for the probability of the chosen token."""
    if caps.top_logprobs == 0:
        raise BadRequest(field, "log-probabilities are not available for this tier")
    return integer(value, field, 0, caps.top_logprobs, " for this tier")


def prompt_log_probs(value: Any, field: str, caps: Caps) -> Any:
    """The number of log-probabilities per prompt token. With 0, one is still computed for each prompt token."""
    if caps.prompt_logprobs == 0:
        raise BadRequest(field, "log-probabilities of the prompt are not available for this tier")
    return integer(value, field, 0, caps.prompt_logprobs, " for this tier")


def log_prob_ids(value: Any, field: str, caps: Caps) -> Any:
    """vLLM's list of token ids for log-probabilities. Its length has the limit of `top_logprobs`."""
    if len(array(value, field, caps)) > caps.top_logprobs:
        raise BadRequest(field, f"must have at most {caps.top_logprobs} entries for this tier")
    return value


def thinking_budget(value: Any, field: str, caps: Caps) -> Any:
    """vLLM's thinking_token_budget. -1 sets no budget; then only the output cap applies."""
    budget = integer(value, field, -1, MAX_INT)
    return None if budget < 0 else min(budget, caps.max_tokens_limit)


def thinking(value: Any, field: str, caps: Caps) -> Any:
    """Anthropic's `thinking`. Its budget is limited later, when the output cap is known."""
    if type(value) is not dict:
        raise wrong_type(field, "an object", value)
    if "budget_tokens" in value:
        integer(value["budget_tokens"], f"{field}.budget_tokens", 1, MAX_INT)
    for name in ("type", "display"):
        if value.get(name) is not None:
            word(value[name], f"{field}.{name}", caps)
    return only(value, ("type", "budget_tokens", "display"))


def reasoning(value: Any, field: str, caps: Caps) -> Any:
    """`reasoning` of the Responses API. Engines read only its effort and summary."""
    if type(value) is not dict:
        raise wrong_type(field, "an object", value)
    return only(value, ("effort", "summary", "generate_summary"))


def includes(value: Any, field: str, caps: Caps) -> Any:
    """`include` of the Responses API: extra parts of the answer. Parts of tools that are not served are dropped,
    because vLLM would refuse them.
    """
    wanted = array(value, field, caps)
    if caps.top_logprobs == 0 and LOG_PROBS in wanted:
        raise BadRequest(field, "log-probabilities are not available for this tier")
    return [name for name in wanted if name in (LOG_PROBS, "reasoning.encrypted_content")] or None
