"""The columns of the table of APIs, and the rules that all rows share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.body.checks import Check
from gateway.wire.body.prompt import Measure
from gateway.wire.body.tools import Renamed


def ALLOW(value: Any, field: str, caps: Caps) -> Any:
    """Forwarded as it is: what it costs is bounded by the size of the body."""
    return value


def STRIP(value: Any, field: str, caps: Caps) -> None:
    """Dropped and reported."""


def ruled(rule: Check, names: str) -> dict[str, Check]:
    """One rule for several fields, whose names stand in one text."""
    return dict.fromkeys(names.split(), rule)


# Taken from the client in no form. Control: who is served first, where, from which cache, under which id.
# Templates and media: the prompt would be another one than was measured. Cost: work that no cap bounds.
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


Fit: TypeAlias = Callable[[dict[str, Any], Caps, list[str]], Renamed]
"""Brings tools and history into the form that engines read; names what it changed."""
Read: TypeAlias = Callable[[bytes], dict[str, Any]]
Write: TypeAlias = Callable[[dict[str, Any]], bytes]


@dataclass(frozen=True, slots=True)
class Shape:
    """One endpoint's requests. `caps` are the names of the output cap: the first that a client used is kept, else the
    last is written; `stop` is the field that stop sequences go to; `usage` says that a stream must ask for usage."""

    rules: dict[str, Check]
    required: tuple[str, ...]
    measure: Measure
    caps: tuple[str, ...] = ("max_tokens",)
    stop: str | None = "stop"
    usage: bool = False
    priority: bool = True
    """Whether the engine takes a `priority` of the tier's."""
    fit: Fit | None = None
    read: Read | None = None
    write: Write | None = None
    """How a body becomes fields and fields a body, less the model; None where it is JSON."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its name in a policy (`tiers.*.apis`), its paths, and the shape of its requests."""

    name: str
    endpoints: tuple[Endpoint, ...]
    shape: Shape
