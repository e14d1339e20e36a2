"""Checkers of fields that cost something. They compare the field with the tier's caps.

If a lower value only shortens the answer, the field is clamped. If a lower value would change the form of the answer,
the request is refused.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.wire.body.checks import (
    MAX_INT,
    UNSUPPORTED,
    BadRequest,
    array,
    boolean,
    integer,
    mapping,
    only,
    short,
    word,
    wrong_type,
)

LOG_PROBS: Final = "message.output_text.logprobs"
WHOLE_VOCABULARY: Final = 2**20
"""No vocabulary has more tokens: the largest, Gemma's, has 262,144."""


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
    return integer(value, field, 1, caps.n, " for this tier (caps.n)")


def best_of(value: Any, field: str, caps: Caps) -> Any:
    """`best_of`: the number of sequences to generate."""
    return integer(value, field, 1, caps.best_of, " for this tier (caps.best_of)")


def beam_search(value: Any, field: str, caps: Caps) -> Any:
    """`use_beam_search`: `n` beams are generated at a time. They cost what `best_of` costs."""
    if boolean(value, field, caps) and caps.best_of == 1:
        raise BadRequest(field, "is not served for this tier (caps.best_of)", UNSUPPORTED)
    return value


def log_probs(value: Any, field: str, caps: Caps) -> Any:
    """`logprobs` of chat completions: a flag. The tier may forbid log-probabilities."""
    if value is True and caps.top_logprobs == 0:
        raise _no_log_probs(field)
    return boolean(value, field, caps)


def top_log_probs(value: Any, field: str, caps: Caps) -> Any:
    """The number of log-probabilities per token."""
    if caps.top_logprobs == 0 and value != 0:
        raise _no_log_probs(field)
    return _number_of_log_probs(value, field, caps.top_logprobs, "top_logprobs")


def completion_log_probs(value: Any, field: str, caps: Caps) -> Any:
    """`logprobs` of plain completions: a number. 0 still asks for the probability of the chosen token."""
    if caps.top_logprobs == 0:
        raise _no_log_probs(field)
    return _number_of_log_probs(value, field, caps.top_logprobs, "top_logprobs")


def prompt_log_probs(value: Any, field: str, caps: Caps) -> Any:
    """The number of log-probabilities per prompt token. With 0, one is still computed for each prompt token."""
    if caps.prompt_logprobs == 0:
        raise _no_prompt_log_probs(field)
    return _number_of_log_probs(value, field, caps.prompt_logprobs, "prompt_logprobs")


def chat_echo(value: Any, field: str, caps: Caps) -> Any:
    """`echo` of chat completions. vLLM computes `top_logprobs` log-probabilities of each prompt token for it."""
    if boolean(value, field, caps) and caps.prompt_logprobs == 0:
        raise _no_prompt_log_probs(field)
    return value


def echoed_log_probs(value: Any, field: str, caps: Caps) -> None:
    """Refuse more log-probabilities than an echoed prompt may have, because engines compute as many for each of its
    tokens.
    """
    if caps.prompt_logprobs == 0:
        raise _no_prompt_log_probs(field, "with 'echo' ")
    _number_of_log_probs(value, field, caps.prompt_logprobs, "prompt_logprobs", " with 'echo'")


def _number_of_log_probs(value: Any, field: str, cap: int, setting: str, more: str = "") -> int:
    """-1 means the whole vocabulary in vLLM, so it needs a cap that no vocabulary exceeds."""
    low = -1 if cap >= WHOLE_VOCABULARY else 0
    return integer(value, field, low, cap, f"{more} for this tier (caps.{setting})")


def _no_log_probs(field: str) -> BadRequest:
    return BadRequest(field, "log-probabilities are not available for this tier (caps.top_logprobs)")


def _no_prompt_log_probs(field: str, when: str = "") -> BadRequest:
    return BadRequest(
        field, f"{when}log-probabilities of the prompt are not available for this tier (caps.prompt_logprobs)"
    )


def log_prob_ids(value: Any, field: str, caps: Caps) -> Any:
    """vLLM's list of token ids for log-probabilities. Its length has the limit of `top_logprobs`."""
    if len(array(value, field, caps)) > caps.top_logprobs:
        raise BadRequest(field, f"must have at most {caps.top_logprobs} entries for this tier (caps.top_logprobs)")
    return value


def engine_option(value: Any, field: str, caps: Caps) -> Any:
    """An option that changes the prompt or the engine's work in a way that no other cap bounds. It passes only if the
    tier allows such options, or if it is off.
    """
    if value is False or value == {} or caps.engine_options:
        return value
    raise BadRequest(field, "is not served for this tier (caps.engine_options)", UNSUPPORTED)


def modalities(value: Any, field: str, caps: Caps) -> Any:
    """The kinds of output. Kinds beside text are media."""
    if any(kind != "text" for kind in short(array(value, field, caps), field, caps)) and not caps.media:
        raise BadRequest(field, "only text is served for this tier (caps.media)", UNSUPPORTED)
    return value


def spoken(value: Any, field: str, caps: Caps) -> Any:
    """`audio` of chat completions: voice and format of spoken answers."""
    if not caps.media:
        raise BadRequest(field, "only text is served for this tier (caps.media)", UNSUPPORTED)
    return mapping(value, field, caps)


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
        raise _no_log_probs(field)
    return [name for name in wanted if name in (LOG_PROBS, "reasoning.encrypted_content")] or None
