"""Which fields of the five endpoints reach an engine: one table each, and nothing that is not in it.

A field is forwarded as it is (ALLOW), through a checker, or dropped and reported (STRIP, and every name that is
not here: engines grow new fields that cost or control, so this is a list of what may pass). The names are those of
the OpenAI and Anthropic references, vLLM 0.32 and SGLang 0.5. Stop sequences: the client may send four; what the
tier adds comes on top, so a vLLM that serves such tiers wants VLLM_MAX_STOP_STRINGS raised.
"""

from __future__ import annotations

from typing import Final

from gateway.core.request import Endpoint
from gateway.wire.apis.row import ALLOW, STRIP, Shape
from gateway.wire.apis.row import STRIPPED as _STRIPPED
from gateway.wire.apis.row import ruled as _all
from gateway.wire.body import bounds, checks, history, inputs, prompt
from gateway.wire.body.checks import Check

_SAMPLING: Final = {
    **_STRIPPED,
    "model": checks.model_name,
    "stream": checks.boolean,
    **_all(ALLOW, "user metadata safety_identifier prompt_cache_key prompt_cache_retention"),
    **_all(ALLOW, "temperature top_p top_k min_p seed"),
}
_GENERATION: Final = {
    **_SAMPLING,
    **_all(ALLOW, "frequency_penalty presence_penalty repetition_penalty length_penalty"),
    **_all(ALLOW, "skip_special_tokens spaces_between_special_tokens include_stop_str_in_output"),
    **_all(ALLOW, "add_special_tokens truncation_side no_stop_trim"),
    # vLLM before 0.12 and SGLang
    **_all(ALLOW, "guided_json guided_regex guided_choice guided_grammar guided_decoding_backend"),
    **_all(ALLOW, "guided_whitespace_pattern structural_tag regex ebnf json_schema"),
    **_all(ALLOW, "return_tokens_as_token_ids return_token_ids"),
    **_all(checks.short, "logit_bias stop_token_ids bad_words allowed_token_ids"),
    **_all(checks.mapping, "response_format structured_outputs repetition_detection"),
    "stream_options": checks.stream_options,
    "stop": checks.stops,
    "n": bounds.choices,
    "min_tokens": bounds.min_tokens,
    "prompt_logprobs": bounds.prompt_log_probs,
    "logprob_token_ids": bounds.log_prob_ids,
    "thinking_token_budget": bounds.thinking_budget,
    "truncate_prompt_tokens": checks.truncation,
    "max_tokens": bounds.output_cap,
}
CHAT: Final[dict[str, Check]] = {
    **_GENERATION,
    # `echo` would make vLLM compute log-probabilities of the whole prompt.
    **_all(STRIP, "best_of echo store return_prompt_text"),
    **_all(ALLOW, "messages tool_choice parallel_tool_calls function_call include_reasoning"),
    **_all(ALLOW, "separate_reasoning stream_reasoning"),
    **_all(checks.word, "reasoning_effort verbosity"),
    **_all(checks.objects, "functions documents"),
    "tools": checks.objects,
    "max_completion_tokens": bounds.output_cap,
    "logprobs": bounds.log_probs,
    "top_logprobs": bounds.top_log_probs,
    "chat_template_kwargs": checks.template_options,
}
COMPLETIONS: Final[dict[str, Check]] = {
    **_GENERATION,
    "prompt": ALLOW,
    "suffix": checks.string,
    "echo": checks.boolean,
    "best_of": bounds.best_of,
    "logprobs": bounds.completion_log_probs,
}
EMBEDDINGS: Final[dict[str, Check]] = {
    **_STRIPPED,
    **_all(STRIP, "padding stream task"),
    "model": checks.model_name,
    **_all(ALLOW, "input messages encoding_format user add_special_tokens truncation_side"),
    **_all(ALLOW, "embed_dtype endianness use_activation normalize"),
    "dimensions": checks.positive,
    "truncate_prompt_tokens": checks.truncation,
    "chat_template_kwargs": checks.template_options,
}
RESPONSES: Final[dict[str, Check]] = {
    **_SAMPLING,
    **_all(STRIP, "prompt_cache_options context_management enable_response_messages max_tool_calls"),
    **_all(ALLOW, "input tool_choice parallel_tool_calls truncation include_reasoning"),
    **_all(ALLOW, "frequency_penalty presence_penalty repetition_penalty"),
    **_all(ALLOW, "skip_special_tokens include_stop_str_in_output"),
    **_all(checks.short, "logit_bias stop_token_ids"),
    **_all(checks.stateful, "previous_response_id conversation prompt previous_input_messages"),
    "instructions": checks.string,
    "background": checks.never,
    "store": checks.unstored,
    "tools": checks.objects,
    **_all(checks.mapping, "text structured_outputs"),
    "include": bounds.includes,
    "reasoning": bounds.reasoning,
    "stream_options": checks.stream_options,
    "stop": checks.stops,
    "top_logprobs": bounds.top_log_probs,
    "max_output_tokens": bounds.output_cap,
    "chat_template_kwargs": checks.template_options,
}
MESSAGES: Final[dict[str, Check]] = {
    **_STRIPPED,
    **_all(STRIP, "mcp_servers context_management cache_control"),
    "model": checks.model_name,
    "stream": checks.boolean,
    **_all(ALLOW, "messages metadata output_config system temperature tool_choice top_k top_p"),
    "tools": checks.objects,
    "thinking": bounds.thinking,
    "stop_sequences": checks.stop_list,
    "max_tokens": bounds.output_cap,
    "chat_template_kwargs": checks.template_options,
}


SHAPES: Final[dict[Endpoint, Shape]] = {
    Endpoint.CHAT: Shape(
        CHAT,
        ("model", "messages"),
        prompt.chat,
        caps=("max_completion_tokens", "max_tokens"),
        usage=True,
        fit=history.chat,
    ),
    Endpoint.COMPLETIONS: Shape(COMPLETIONS, ("model", "prompt"), prompt.completion, usage=True),
    Endpoint.EMBEDDINGS: Shape(EMBEDDINGS, ("model",), inputs.measure, caps=(), stop=None),
    Endpoint.RESPONSES: Shape(
        RESPONSES, ("model", "input"), prompt.responses, caps=("max_output_tokens",), fit=history.responses
    ),
    Endpoint.MESSAGES: Shape(
        MESSAGES, ("model", "messages", "max_tokens"), prompt.chat, stop="stop_sequences", fit=history.messages
    ),
}

COUNTED: Final = Shape(
    {name: MESSAGES[name] for name in ("model", "messages", "system", "tools", "tool_choice", "thinking")},
    ("model", "messages"),
    prompt.chat,
    caps=(),
    stop=None,
    fit=history.messages,
)
"""A message whose tokens are to be counted: what becomes prompt."""
