"""Chat completions: POST /v1/chat/completions of OpenAI, as vLLM 0.32 and SGLang 0.5 serve it."""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.answers.as_events import chat_events
from gateway.wire.answers.whole import GENERATED
from gateway.wire.apis.chunks import CompletionAssembly, CompletionReader
from gateway.wire.apis.fields import ALLOW, GENERATION, STRIP, ruled
from gateway.wire.apis.row import Answers, Api, Shape
from gateway.wire.body import bounds, checks, prompt
from gateway.wire.body.checks import BadRequest, Check
from gateway.wire.body.tools import NOT_RENAMED, Kept, Renamed, settle

FIELDS: Final[dict[str, Check]] = {
    **GENERATION,
    **ruled(STRIP, "store"),
    **ruled(ALLOW, "messages tool_choice parallel_tool_calls function_call include_reasoning"),
    **ruled(ALLOW, "separate_reasoning stream_reasoning"),
    "reasoning_effort": checks.effort,
    **ruled(checks.word, "verbosity task"),
    "thinking": bounds.thinking,
    **ruled(checks.boolean, "add_generation_prompt continue_final_message"),
    **ruled(checks.boolean, "return_prompt_text return_prompt_token_ids return_meta_info"),
    **ruled(checks.boolean, "return_input_ids_in_sglext return_output_ids_in_sglext"),
    **ruled(checks.boolean, "return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64"),
    "echo": bounds.chat_echo,
    "best_of": bounds.best_of,
    "modalities": bounds.modalities,
    "audio": bounds.spoken,
    **ruled(checks.objects, "functions documents"),
    "tools": checks.objects,
    "max_completion_tokens": bounds.output_cap,
    "logprobs": bounds.log_probs,
    "top_logprobs": bounds.top_log_probs,
    "chat_template_kwargs": checks.template_options,
}


def fit(fields: dict[str, Any], caps: Caps, changed: list[str]) -> Renamed:
    """Bound an echo, and keep only the functions of the tools.

    A function without a name is refused: vLLM would answer 500, which counts against the replica.
    """
    if fields.get("echo") and "top_logprobs" in fields:
        bounds.echoed_log_probs(fields["top_logprobs"], "top_logprobs", caps)
    if "tools" not in fields:
        return NOT_RENAMED
    kept = Kept(changed)
    for i, tool in enumerate(fields["tools"]):
        if tool.get("type", "function") != "function":
            inner = tool.get("custom")
            kept.drop(tool, inner.get("name") if type(inner) is dict else None)
            continue
        function = tool.get("function")
        if type(function) is not dict or type(function.get("name")) is not str:
            raise BadRequest(f"tools[{i}].function", "must be an object with a name")
        kept.keep(tool, function["name"])
    settle(fields, kept)
    return NOT_RENAMED


def _assembly() -> CompletionAssembly:
    return CompletionAssembly(True)


CHAT: Final = Api(
    "chat",
    (Endpoint.CHAT,),
    Shape(
        FIELDS,
        ("messages",),
        prompt.chat,
        caps=("max_completion_tokens", "max_tokens"),
        usage=True,
        fit=fit,
    ),
    Answers(GENERATED, CompletionReader, _assembly, chat_events),
)
