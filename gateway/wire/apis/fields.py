"""Rules for tables of fields, and the tables that several APIs share. A table decides which fields reach an engine.

A field is forwarded unchanged (ALLOW), passed through a checker, or dropped and reported (STRIP). A field that is not
in the table of its API is dropped, too: new versions of engines add fields that cost or control something. The names
are those of the OpenAI and Anthropic references, vLLM 0.32 and SGLang 0.5. A client may send at most four stop
sequences, as many as vLLM takes by default. The stop sequences of the tier are added. So a vLLM that serves such a tier
needs a higher VLLM_MAX_STOP_STRINGS.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.wire.body import bounds, checks
from gateway.wire.body.checks import Check


def ALLOW(value: Any, field: str, caps: Caps) -> Any:
    """Forward the field unchanged. Its cost is limited by the size of the body."""
    return value


def STRIP(value: Any, field: str, caps: Caps) -> None:
    """Drop the field, and report it to the client."""


def ruled(rule: Check, names: str) -> dict[str, Check]:
    """A table with the same rule for several fields. `names`: their names, separated by blanks."""
    return dict.fromkeys(names.split(), rule)


# Fields that are never accepted from a client. Control: order of service, replica, cache, id. Templates and media: the
# prompt would differ from the one that was measured. Cost: work that no cap limits.
STRIPPED: Final = ruled(
    STRIP,
    # control
    "priority service_tier speed request_id rid session_id session_params cache_salt extra_key kv_transfer_params"
    " ec_transfer_params vllm_xargs custom_params custom_logit_processor lora_path data_parallel_rank"
    " bootstrap_host bootstrap_port bootstrap_room stream_interval container inference_geo moderation"
    # templates and media
    " chat_template media_io_kwargs mm_processor_kwargs mm_payload return_mm_kwargs prompt_embeds image_data"
    " add_generation_prompt continue_final_message modalities audio"
    # cost
    " ignore_eos use_beam_search early_stopping return_hidden_states routed_experts_prompt_start prediction"
    " web_search_options watermarking return_token_offsets",
)

SAMPLING: Final = {
    **STRIPPED,
    "model": checks.model_name,
    "stream": checks.boolean,
    **ruled(ALLOW, "metadata"),
    **ruled(checks.name, "user safety_identifier prompt_cache_key prompt_cache_retention"),
    **ruled(ALLOW, "temperature top_p top_k min_p seed"),
}
GENERATION: Final = {
    **SAMPLING,
    **ruled(ALLOW, "frequency_penalty presence_penalty repetition_penalty length_penalty"),
    **ruled(ALLOW, "skip_special_tokens spaces_between_special_tokens include_stop_str_in_output"),
    **ruled(ALLOW, "add_special_tokens truncation_side no_stop_trim"),
    # vLLM before 0.12 and SGLang
    **ruled(ALLOW, "guided_json guided_regex guided_choice guided_grammar guided_decoding_backend"),
    **ruled(ALLOW, "guided_whitespace_pattern structural_tag regex ebnf json_schema"),
    **ruled(ALLOW, "return_tokens_as_token_ids return_token_ids"),
    **ruled(checks.short, "logit_bias stop_token_ids bad_words allowed_token_ids"),
    **ruled(checks.mapping, "response_format structured_outputs repetition_detection"),
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
