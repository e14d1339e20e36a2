"""Rules for tables of fields, and the tables that several APIs share. A table decides which fields reach an engine.

A field that an engine reads and that changes the answer passes, within the caps of the tier, or is refused by its name.
It is never dropped, because the client would get another answer than it asked for. These fields are dropped and
reported (STRIP): fields whose effect is the gateway's own decision, and fields that no engine reads. A field that is
not in the table of its API is dropped, too: new versions of engines add fields that cost or control something.

The names are those of the OpenAI and Anthropic references, vLLM 0.33 and SGLang 0.5.23. A client may send at most four
stop sequences, as many as vLLM takes by default. The stop sequences of the tier are added. So a vLLM that serves such a
tier needs a higher VLLM_MAX_STOP_STRINGS.
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


SHARED: Final = {
    # The gateway decides order of service, replica, cache and id. Tokens per chunk would hide the latency of tokens.
    **ruled(
        STRIP,
        "priority service_tier speed request_id rid session_id cache_salt extra_key custom_labels stream_interval"
        " kv_transfer_params ec_transfer_params data_parallel_rank routed_dp_rank disagg_prefill_dp_rank"
        " bootstrap_host bootstrap_port bootstrap_room",
    ),
    # Engines read these only on paths that are not served.
    **ruled(STRIP, "mm_payload return_mm_kwargs return_token_offsets"),
    # No engine reads these: accounts, hosted tools, and hints of OpenAI and Anthropic.
    **ruled(
        STRIP,
        "container inference_geo moderation prediction web_search_options diagnostics billing_policy"
        " user_profile_id workspace_id fallbacks fallback_credit_token betas access_programs prompt_cache_options",
    ),
    # Templates and media: the prompt would differ from the one that was measured. Code and hidden states: work that no
    # cap limits. Engines themselves serve most of these only if their operator says so.
    **ruled(
        bounds.engine_option,
        "chat_template media_io_kwargs mm_processor_kwargs max_dynamic_patch min_dynamic_patch use_audio_in_video"
        " images_config video_config vllm_xargs custom_params custom_logit_processor stop_regex watermark watermarking"
        " return_hidden_states return_pooled_hidden_states return_routed_experts return_sampling_mask"
        " sampling_logprobs_mode embed_override_token_id embed_overrides query_embed_overrides item_embed_overrides"
        " padding",
    ),
    **ruled(checks.unserved, "lora_path prompt_embeds input_ids session_params"),
}

SAMPLING: Final = {
    **SHARED,
    "model": checks.model_name,
    "stream": checks.boolean,
    **ruled(ALLOW, "metadata"),
    **ruled(checks.name, "user safety_identifier prompt_cache_key prompt_cache_retention"),
    **ruled(ALLOW, "temperature top_p top_k min_p seed"),
    # Its cost is that of `min_tokens`: the output cap bounds it.
    "ignore_eos": checks.boolean,
}
GENERATION: Final = {
    **SAMPLING,
    **ruled(ALLOW, "frequency_penalty presence_penalty repetition_penalty length_penalty"),
    **ruled(ALLOW, "skip_special_tokens spaces_between_special_tokens include_stop_str_in_output"),
    **ruled(ALLOW, "add_special_tokens truncation_side no_stop_trim"),
    # vLLM before 0.12 and SGLang
    **ruled(ALLOW, "guided_json guided_regex guided_choice guided_grammar guided_decoding_backend"),
    **ruled(ALLOW, "guided_whitespace_pattern structural_tag regex ebnf json_schema"),
    **ruled(checks.boolean, "return_tokens_as_token_ids return_token_ids return_weight_versions"),
    **ruled(checks.boolean, "return_cached_tokens_details return_spec_tokens_details"),
    **ruled(checks.natural, "routed_experts_prompt_start routed_experts_start_len"),
    "use_beam_search": bounds.beam_search,
    "early_stopping": checks.boolean,
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
