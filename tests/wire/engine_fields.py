"""Names of the request fields that engines and SDKs know, by endpoint, as data; each with its source."""

from __future__ import annotations

from typing import Final

from gateway.core.request import Endpoint

VLLM: Final = {
    Endpoint.CHAT: (
        "messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n"
        " presence_penalty response_format seed stop stream stream_options temperature top_p tools tool_choice"
        " reasoning_effort thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search"
        " top_k min_p repetition_penalty watermarking length_penalty stop_token_ids include_stop_str_in_output"
        " ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens"
        " truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo"
        " add_generation_prompt continue_final_message add_special_tokens documents chat_template"
        " chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs priority request_id"
        " session_id return_tokens_as_token_ids return_token_ids return_weight_versions"
        " routed_experts_prompt_start return_token_offsets return_prompt_text mm_payload return_mm_kwargs"
        " cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection stream_interval"
    ),
    Endpoint.COMPLETIONS: (
        "model prompt echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop"
        " stream stream_options suffix temperature top_p user use_beam_search top_k min_p repetition_penalty"
        " watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens"
        " skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side"
        " allowed_token_ids prompt_logprobs logprob_token_ids bad_words prompt_embeds add_special_tokens"
        " response_format structured_outputs priority request_id session_id return_tokens_as_token_ids"
        " return_token_ids return_weight_versions routed_experts_prompt_start return_token_offsets mm_payload"
        " return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params vllm_xargs repetition_detection"
        " thinking_token_budget stream_interval"
    ),
    Endpoint.RESPONSES: (
        "background include input instructions max_output_tokens max_tool_calls metadata model logit_bias"
        " parallel_tool_calls previous_response_id prompt reasoning include_reasoning service_tier store"
        " stream temperature text tool_choice tools top_logprobs top_p top_k min_p truncation user"
        " skip_special_tokens spaces_between_special_tokens include_stop_str_in_output presence_penalty"
        " frequency_penalty prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier"
        " watermarking request_id session_id media_io_kwargs mm_processor_kwargs priority mm_payload"
        " return_mm_kwargs cache_salt enable_response_messages previous_input_messages structured_outputs"
        " repetition_penalty seed stop stop_token_ids ignore_eos vllm_xargs kv_transfer_params"
        " ec_transfer_params chat_template_kwargs"
    ),
    Endpoint.MESSAGES: (
        "model messages max_tokens metadata output_config thinking stop_sequences stream system temperature"
        " tool_choice tools top_k top_p mm_payload return_mm_kwargs cache_salt watermarking kv_transfer_params"
        " ec_transfer_params vllm_xargs chat_template_kwargs"
    ),
    Endpoint.EMBEDDINGS: (
        "model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs"
        " cache_salt input add_special_tokens encoding_format embed_dtype endianness dimensions use_activation"
        " add_generation_prompt continue_final_message chat_template chat_template_kwargs media_io_kwargs"
        " messages"
    ),
    Endpoint.RERANK: (
        "model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs"
        " cache_salt use_activation max_tokens_per_query max_tokens_per_doc instruction chat_template_kwargs"
        " query documents top_n"
    ),
    Endpoint.SCORE: (
        "model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs"
        " cache_salt use_activation max_tokens_per_query max_tokens_per_doc instruction chat_template_kwargs"
        " text_1 text_2 queries documents items data_1 data_2"
    ),
    Endpoint.POOLING: (
        "model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs"
        " cache_salt input add_special_tokens encoding_format embed_dtype endianness dimensions use_activation"
        " task add_generation_prompt continue_final_message chat_template chat_template_kwargs media_io_kwargs"
        " messages data"
    ),
    Endpoint.CLASSIFY: (
        "model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs"
        " cache_salt input add_special_tokens use_activation add_generation_prompt continue_final_message"
        " chat_template chat_template_kwargs media_io_kwargs messages"
    ),
    Endpoint.TOKENIZE: (
        "model prompt add_special_tokens return_token_strs messages add_generation_prompt"
        " continue_final_message chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs tools"
    ),
    Endpoint.DETOKENIZE: ("model tokens"),
    Endpoint.TRANSCRIPTIONS: (
        "file model language hotwords prompt response_format timestamp_granularities stream"
        " stream_include_usage stream_continuous_usage_stats vllm_xargs to_language use_beam_search n"
        " length_penalty include_stop_str_in_output temperature watermarking top_p top_k min_p seed"
        " frequency_penalty repetition_penalty presence_penalty max_completion_tokens"
    ),
    Endpoint.TRANSLATIONS: (
        "file model prompt response_format use_beam_search n length_penalty include_stop_str_in_output seed"
        " temperature watermarking top_p top_k min_p frequency_penalty repetition_penalty presence_penalty"
        " language hotwords to_language stream stream_include_usage stream_continuous_usage_stats"
        " max_completion_tokens vllm_xargs"
    ),
}
"""vLLM 0.33.0: the request classes in `vllm/entrypoints/**/protocol.py`."""
SGLANG: Final = {
    Endpoint.CHAT: (
        "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank messages model"
        " frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n"
        " presence_penalty response_format seed stop stream stream_options temperature top_p user tools"
        " tool_choice parallel_tool_calls return_hidden_states return_routed_experts routed_experts_start_len"
        " return_cached_tokens_details return_spec_tokens_details return_prompt_token_ids return_token_ids"
        " return_meta_info return_input_ids_in_sglext return_output_ids_in_sglext return_sampling_mask"
        " sampling_logprobs_mode return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64"
        " reasoning_effort thinking task top_k min_p min_tokens regex ebnf repetition_penalty stop_token_ids"
        " stop_regex no_stop_trim ignore_eos continue_final_message skip_special_tokens lora_path session_id"
        " session_params separate_reasoning stream_reasoning chat_template_kwargs max_dynamic_patch"
        " min_dynamic_patch use_audio_in_video images_config video_config mm_processor_kwargs"
        " custom_logit_processor custom_params watermark input_ids rid extra_key cache_salt priority"
        " data_parallel_rank"
    ),
    Endpoint.COMPLETIONS: (
        "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank model prompt"
        " best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream"
        " stream_options suffix temperature top_p user return_hidden_states return_routed_experts"
        " routed_experts_start_len return_cached_tokens_details return_spec_tokens_details return_token_ids"
        " top_k min_p min_tokens json_schema regex ebnf repetition_penalty stop_token_ids stop_regex"
        " no_stop_trim ignore_eos skip_special_tokens lora_path session_id session_params response_format"
        " custom_params custom_logit_processor watermark images_config mm_processor_kwargs data_parallel_rank"
        " rid extra_key cache_salt priority custom_labels"
    ),
    Endpoint.RESPONSES: (
        "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank background"
        " include input instructions max_output_tokens max_tool_calls metadata model parallel_tool_calls"
        " previous_response_id reasoning service_tier store stream temperature text tool_choice tools"
        " top_logprobs top_p truncation user chat_template_kwargs request_id session_id priority extra_key"
        " cache_salt data_parallel_rank frequency_penalty presence_penalty stop top_k min_p repetition_penalty"
    ),
    Endpoint.MESSAGES: (
        "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank model messages"
        " max_tokens metadata stop_sequences stream system temperature thinking tool_choice tools top_k top_p"
        " output_config betas"
    ),
    Endpoint.EMBEDDINGS: (
        "input model encoding_format dimensions user rid priority lora_path embed_override_token_id embed_overrides"
    ),
    Endpoint.SCORE: (
        "query items embed_override_token_id query_embed_overrides item_embed_overrides label_token_ids"
        " apply_softmax temperature return_token_logprobs item_first return_pooled_hidden_states"
        " score_extraction_token model"
    ),
    Endpoint.CLASSIFY: ("model input user rid priority"),
    Endpoint.TOKENIZE: (
        "model prompt messages tools tool_choice reasoning_effort continue_final_message chat_template_kwargs"
        " add_special_tokens add_generation_prompt"
    ),
    Endpoint.DETOKENIZE: ("model tokens skip_special_tokens"),
    Endpoint.TRANSCRIPTIONS: ("model language response_format temperature timestamp_granularities stream file"),
}
"""SGLang 0.5.23: the request classes in `sglang/srt/entrypoints/{openai,anthropic}/protocol.py`."""
OPENAI: Final = {
    Endpoint.CHAT: (
        "messages model audio frequency_penalty function_call functions logit_bias logprobs"
        " max_completion_tokens max_tokens metadata modalities moderation n parallel_tool_calls prediction"
        " presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort"
        " response_format safety_identifier seed service_tier stop store stream_options temperature"
        " tool_choice tools top_logprobs top_p user verbosity web_search_options stream"
    ),
    Endpoint.COMPLETIONS: (
        "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed"
        " stop stream_options suffix temperature top_p user stream"
    ),
    Endpoint.EMBEDDINGS: ("input model dimensions encoding_format user"),
    Endpoint.RESPONSES: (
        "access_programs background background_options context_management conversation image include input"
        " instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls"
        " previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning"
        " safety_identifier service_tier store stream_options temperature text tool_choice tools top_logprobs"
        " top_p truncation user stream"
    ),
    Endpoint.TRANSCRIPTIONS: (
        "file model chunking_strategy include keywords known_speaker_names known_speaker_references language"
        " languages prompt response_format temperature timestamp_granularities stream"
    ),
    Endpoint.TRANSLATIONS: ("file model prompt response_format temperature"),
}
"""openai 3.57.0 (Python): the parameters in `openai/types/**/*_create_params.py`."""
ANTHROPIC: Final = {
    Endpoint.MESSAGES: (
        "max_tokens messages model cache_control container diagnostics inference_geo metadata output_config"
        " service_tier speed stop_sequences system thinking tool_choice tools user_profile_id workspace_id"
        " stream billing_policy compaction context_management fallback_credit_token fallbacks mcp_servers"
        " thread betas"
    ),
}
"""anthropic 2.14.0 (Python): the parameters in `anthropic/types/{,beta/}message_create_params.py`."""
