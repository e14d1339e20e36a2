"""Fields that cost: checkers that compare them with the tier's caps.

A field that only shortens the answer is clamped; one that would change its shape is refused.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.wire.body.checks import MAX_INT, BadRequest, array, boolean, integer, only, word, wrong_type

LOG_PROBS: Final = "message.output_text.logprobs"


def output_cap(value: Any, field: str, caps: Caps) -> Any:
    """A number of output tokens; above the tier's limit it is clamped, which does not change the answer's shape."""
    return min(integer(value, field, 1, MAX_INT), caps.max_tokens_limit)


def min_tokens(value: Any, field: str, caps: Caps) -> Any:
    """Clamped to what the request may generate."""
    return min(integer(value, field, 0, MAX_INT), caps.max_tokens_limit)


def choices(value: Any, field: str, caps: Caps) -> Any:
    """`n`: refused over the bound, since fewer choices would be another answer."""
    return integer(value, field, 1, caps.n, " for this tier")


def best_of(value: Any, field: str, caps: Caps) -> Any:
    """`best_of`: the number of sequences to generate."""
    return integer(value, field, 1, caps.best_of, " for this tier")


def log_probs(value: Any, field: str, caps: Caps) -> Any:
    """`logprobs` is a flag in chat; log-probabilities may be forbidden altogether."""
    if value is True and caps.top_logprobs == 0:
        raise BadRequest(field, "log-probabilities are not available for this tier")
    return boolean(value, field, caps)


def top_log_probs(value: Any, field: str, caps: Caps) -> Any:
    """The number of log-probabilities per token; vLLM's -1, the whole vocabulary, is refused."""
    if caps.top_logprobs == 0 and value != 0:
        raise BadRequest(field, "log-probabilities are not available for this tier")
    return integer(value, field, 0, caps.top_logprobs, " for this tier")


def completion_log_probs(value: Any, field: str, caps: Caps) -> Any:
    """`logprobs` of completions is a count; 0 still asks for the chosen token's."""
    if caps.top_logprobs == 0:
        raise BadRequest(field, "log-probabilities are not available for this tier")
    return integer(value, field, 0, caps.top_logprobs, " for this tier")


def prompt_log_probs(value: Any, field: str, caps: Caps) -> Any:
    """Log-probabilities of the prompt: 0 still computes one for each token of it."""
    if caps.prompt_logprobs == 0:
        raise BadRequest(field, "log-probabilities of the prompt are not available for this tier")
    return integer(value, field, 0, caps.prompt_logprobs, " for this tier")


def log_prob_ids(value: Any, field: str, caps: Caps) -> Any:
    """vLLM's set of token ids for log-probabilities; their number has the same bound."""
    if len(array(value, field, caps)) > caps.top_logprobs:
        raise BadRequest(field, f"must have at most {caps.top_logprobs} entries for this tier")
    return value


def thinking_budget(value: Any, field: str, caps: Caps) -> Any:
    """vLLM's thinking_token_budget. -1 sets no bound of its own: the output cap applies."""
    budget = integer(value, field, -1, MAX_INT)
    return None if budget < 0 else min(budget, caps.max_tokens_limit)


def thinking(value: Any, field: str, caps: Caps) -> Any:
    """Anthropic's `thinking`; its budget is bounded when the output cap is known."""
    if type(value) is not dict:
        raise wrong_type(field, "an object", value)
    if "budget_tokens" in value:
        integer(value["budget_tokens"], f"{field}.budget_tokens", 1, MAX_INT)
    for name in ("type", "display"):
        if value.get(name) is not None:
            word(value[name], f"{field}.{name}", caps)
    return only(value, ("type", "budget_tokens", "display"))


def reasoning(value: Any, field: str, caps: Caps) -> Any:
    """`reasoning` of the Responses API, of which engines read the effort and the summary."""
    if type(value) is not dict:
        raise wrong_type(field, "an object", value)
    return only(value, ("effort", "summary", "generate_summary"))


def includes(value: Any, field: str, caps: Caps) -> Any:
    """Extras of a Responses answer. Those of unserved tools are dropped, since vLLM refuses unknown ones."""
    wanted = array(value, field, caps)
    if caps.top_logprobs == 0 and LOG_PROBS in wanted:
        raise BadRequest(field, "log-probabilities are not available for this tier")
    return [name for name in wanted if name in (LOG_PROBS, "reasoning.encrypted_content")] or None
