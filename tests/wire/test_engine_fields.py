"""Every request field that an engine or an SDK knows is decided in the table of its API."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.policy.builtin import builtin
from gateway.wire.apis.fields import STRIP
from gateway.wire.apis.table import API_OF
from gateway.wire.request import BadRequest

from .bodies import MINIMAL, read, sent
from .engine_fields import ANTHROPIC, OPENAI, SGLANG, VLLM

ENGINES = {"vllm": VLLM, "sglang": SGLANG}
EVERYBODY = ENGINES | {"openai": OPENAI, "anthropic": ANTHROPIC}
KNOWN = [(of, endpoint) for of, table in EVERYBODY.items() for endpoint in table]
FORMS = (Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS)
DECIDED_BY_US = {
    *("priority", "service_tier", "request_id", "rid", "session_id", "cache_salt", "extra_key", "custom_labels"),
    *("kv_transfer_params", "ec_transfer_params", "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room", "stream_interval"),
}
"""Fields about order, placement, cache, ids and metrics. An answer is the same without them."""
OF_OTHER_PATHS = {"mm_payload", "return_mm_kwargs", "return_token_offsets", "data", "prompt_cache_options", "betas"}
"""Fields that engines read on paths that are not served, or read and ignore."""
NOTHING_TO_COUNT = {"max_tool_calls"}
"""It counts calls of tools that the server runs, and none is served."""
(ZERO_CONFIG,) = (tier.caps for tier in builtin(["http://127.0.0.1:8000"]).tiers.values())


def names_of(of: str, endpoint: Endpoint) -> list[str]:
    return EVERYBODY[of][endpoint].split()


@pytest.mark.parametrize(("of", "endpoint"), KNOWN)
def test_no_field_of_an_engine_or_sdk_is_undecided(of: str, endpoint: Endpoint) -> None:
    rules = API_OF[endpoint].shape.rules
    undecided = [name for name in names_of(of, endpoint) if name not in rules and f"{name}[]" not in rules]
    assert undecided == []


@pytest.mark.parametrize(("of", "endpoint"), [(of, endpoint) for of, endpoint in KNOWN if of in ENGINES])
def test_no_field_that_changes_an_answer_of_an_engine_is_dropped(of: str, endpoint: Endpoint) -> None:
    rules = API_OF[endpoint].shape.rules
    dropped = {name for name in names_of(of, endpoint) if rules.get(name) is STRIP}
    assert dropped <= DECIDED_BY_US | OF_OTHER_PATHS | NOTHING_TO_COUNT


OPTIONS: dict[str, Any] = {
    "chat_template": "{{ messages }}",
    "mm_processor_kwargs": {"max_pixels": 9},
    "media_io_kwargs": {"video": {"num_frames": 9}},
    "vllm_xargs": {"a": 1},
    "custom_logit_processor": "x",
    "stop_regex": "a+",
    "return_hidden_states": True,
    "watermarking": False,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_engine_option_is_refused_by_its_setting_and_passes_where_that_is_on(name: str) -> None:
    document = {**MINIMAL[Endpoint.CHAT], name: OPTIONS[name] or True}
    with pytest.raises(BadRequest, match=rf"^{name}: is not served for this tier \(caps\.engine_options\)$"):
        read(Endpoint.CHAT, document, Caps())
    assert sent(Endpoint.CHAT, document, caps=Caps(engine_options=True))[name] == document[name]


@pytest.mark.parametrize("name", ["return_hidden_states", "use_beam_search", "echo"])
def test_option_that_is_off_passes_in_every_tier(name: str) -> None:
    document = {**MINIMAL[Endpoint.CHAT], name: False}
    assert sent(Endpoint.CHAT, document, caps=Caps())[name] is False


@pytest.mark.parametrize("name", ["lora_path", "prompt_embeds", "input_ids", "session_params"])
def test_field_that_would_replace_prompt_or_model_is_refused_with_advice(name: str) -> None:
    with pytest.raises(BadRequest, match=f"^{name}: is not served here: (name|send) "):
        read(Endpoint.CHAT, {**MINIMAL[Endpoint.CHAT], name: "x"}, ZERO_CONFIG)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.CHAT, {"continue_final_message": True, "add_generation_prompt": False}),
        (Endpoint.CHAT, {"ignore_eos": True, "min_tokens": 4}),
        (Endpoint.COMPLETIONS, {"ignore_eos": True, "min_tokens": 4}),
        (Endpoint.CHAT, {"chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "high", "budget": 5}}),
        (Endpoint.CHAT, {"thinking": {"type": "disabled"}}),
        (Endpoint.CHAT, {"reasoning_effort": 0.5, "return_prompt_text": True, "modalities": ["text"]}),
        (
            Endpoint.TOKENIZE,
            {"prompt": None, "messages": MINIMAL[Endpoint.CHAT]["messages"], "reasoning_effort": "low"},
        ),
        (Endpoint.SCORE, {"instruction": "compare", "score_extraction_token": "yes"}),
        (Endpoint.EMBEDDINGS, {"task": "retrieval.query", "dimensions": 5}),
    ],
)
def test_field_that_changes_the_answer_at_no_cost_passes(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    document = {**MINIMAL[endpoint], **fields}
    assert read(endpoint, document, Caps()).changed == ()
    body = sent(endpoint, document, caps=Caps())
    assert {name: body.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("endpoint", "fields", "setting"),
    [
        (Endpoint.CHAT, {"n": 2}, "caps.n"),
        (Endpoint.COMPLETIONS, {"best_of": 2}, "caps.best_of"),
        (Endpoint.CHAT, {"use_beam_search": True}, "caps.best_of"),
        (Endpoint.CHAT, {"top_logprobs": 21}, "caps.top_logprobs"),
        (Endpoint.CHAT, {"prompt_logprobs": 1}, "caps.prompt_logprobs"),
        (Endpoint.CHAT, {"echo": True}, "caps.prompt_logprobs"),
        (Endpoint.COMPLETIONS, {"echo": True, "logprobs": 1}, "caps.prompt_logprobs"),
        (Endpoint.COMPLETIONS, {"prompt": ["a"] * 257}, "caps.batch"),
        (Endpoint.RERANK, {"documents": ["a"] * 257}, "caps.batch"),
        (Endpoint.CHAT, {"modalities": ["text", "audio"]}, "caps.media"),
        (Endpoint.CHAT, {"audio": {"voice": "v", "format": "wav"}}, "caps.media"),
    ],
)
def test_refusal_names_the_setting_and_without_a_policy_the_engine_decides(
    endpoint: Endpoint, fields: dict[str, Any], setting: str
) -> None:
    document = {**MINIMAL[endpoint], **fields}
    with pytest.raises(BadRequest, match=setting.replace(".", r"\.")):
        read(endpoint, document, Caps())
    body = sent(endpoint, document, caps=ZERO_CONFIG)
    assert {name: body[name] for name in fields} == fields


@pytest.mark.parametrize("name", ["top_logprobs", "prompt_logprobs"])
def test_whole_vocabulary_may_be_asked_for_only_where_nothing_caps_it(name: str) -> None:
    document = {**MINIMAL[Endpoint.CHAT], name: -1}
    assert sent(Endpoint.CHAT, document, caps=ZERO_CONFIG)[name] == -1
    with pytest.raises(BadRequest, match=f"^{name}: must be at least 0$"):
        read(Endpoint.CHAT, document, Caps(top_logprobs=20, prompt_logprobs=20))


def test_echo_of_a_chat_is_bounded_with_its_log_probabilities() -> None:
    document = {**MINIMAL[Endpoint.CHAT], "echo": True, "logprobs": True, "top_logprobs": 3}
    assert sent(Endpoint.CHAT, document, caps=Caps(prompt_logprobs=3))["echo"] is True
    with pytest.raises(BadRequest, match=r"^top_logprobs: must be at most 2 with 'echo' for this tier"):
        read(Endpoint.CHAT, document, Caps(prompt_logprobs=2))


@pytest.mark.parametrize("name", ["chat_template", "messages", "tools", "tokenize", "continue_final_message", "x" * 65])
def test_template_option_that_is_no_switch_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match=r"^chat_template_kwargs: .* is no switch of a template$"):
        read(Endpoint.CHAT, {**MINIMAL[Endpoint.CHAT], "chat_template_kwargs": {name: "x"}}, ZERO_CONFIG)


@pytest.mark.parametrize("option", ["x" * 65, ["x"], {"a": 1}])
def test_template_option_that_is_long_or_nested_is_refused(option: object) -> None:
    with pytest.raises(BadRequest, match=r"^chat_template_kwargs\.tone: "):
        read(Endpoint.CHAT, {**MINIMAL[Endpoint.CHAT], "chat_template_kwargs": {"tone": option}}, ZERO_CONFIG)


@pytest.mark.parametrize("field", ["use_beam_search", "return_meta_info"])
def test_answer_that_no_engine_streams_is_not_assembled(field: str) -> None:
    caps = Caps(aggregate=True, best_of=2)
    assert read(Endpoint.CHAT, MINIMAL[Endpoint.CHAT], caps).assembled
    assert not read(Endpoint.CHAT, {**MINIMAL[Endpoint.CHAT], field: True}, caps).assembled


def test_schema_of_a_message_reaches_engines_under_its_new_name() -> None:
    shape = {"type": "json_schema", "schema": {"type": "object"}}
    body = sent(Endpoint.MESSAGES, {**MINIMAL[Endpoint.MESSAGES], "output_format": shape})
    assert body["output_config"] == {"format": shape}
    assert "output_format" not in body


def test_tools_that_are_dropped_from_a_chat_are_not_counted_either() -> None:
    tools = [{"type": "web_search"}, {"type": "function", "function": {"name": "f"}}]
    chat = {**MINIMAL[Endpoint.CHAT], "tools": tools}
    for endpoint in (Endpoint.CHAT, Endpoint.TOKENIZE):
        assert sent(endpoint, chat)["tools"] == tools[1:]
        assert read(endpoint, chat).changed == ("tools.web_search",)


def part(kind: str, url: str) -> dict[str, Any]:
    parts: dict[str, dict[str, Any]] = {
        "chat": {"type": "image_url", "image_url": {"url": url}},
        "responses": {"type": "input_image", "image_url": url},
        "messages": {"type": "image", "source": {"type": "url", "url": url}},
    }
    return parts[kind]


def with_picture(kind: str, url: str) -> tuple[Endpoint, dict[str, Any]]:
    endpoint = {"chat": Endpoint.CHAT, "responses": Endpoint.RESPONSES, "messages": Endpoint.MESSAGES}[kind]
    name = "input" if kind == "responses" else "messages"
    return endpoint, {**MINIMAL[endpoint], name: [{"role": "user", "content": [part(kind, url)]}]}


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
@pytest.mark.parametrize("url", ["http://example.com/a.png", "HTTPS://example.com/a.png"])
def test_picture_by_url_passes_only_where_the_engine_may_fetch(kind: str, url: str) -> None:
    endpoint, document = with_picture(kind, url)
    with pytest.raises(BadRequest, match=r"\(caps\.media\)"):
        read(endpoint, document, Caps())
    with pytest.raises(BadRequest, match=r"\(caps\.media_urls\)"):
        read(endpoint, document, Caps(media=True))
    assert read(endpoint, document, ZERO_CONFIG).changed == ()


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
@pytest.mark.parametrize("url", ["file:///etc/passwd", "/etc/passwd", "ftp://a/b.png", "gopher://a", "", " http://a"])
def test_picture_by_another_scheme_is_refused_everywhere(kind: str, url: str) -> None:
    endpoint, document = with_picture(kind, url)
    with pytest.raises(BadRequest, match=r"http:// or https://"):
        read(endpoint, document, ZERO_CONFIG)


@pytest.mark.parametrize(("of", "endpoint"), [(of, e) for of, e in KNOWN if of in ENGINES and e not in FORMS])
def test_refusals_of_engine_fields_are_errors_that_name_the_field(of: str, endpoint: Endpoint) -> None:
    """Whatever the value is, a known field passes, is dropped with its name, or is refused with its name."""
    for name in names_of(of, endpoint):
        for value in ("x", True, 7, ["x"], {"a": 1}):
            assert treatment(endpoint, name, value) in ("passed", "dropped", "refused"), (name, value)


def treatment(endpoint: Endpoint, name: str, value: object) -> str:
    try:
        parsed = read(endpoint, {**MINIMAL[endpoint], name: value}, ZERO_CONFIG)
    except BadRequest as refused:
        return "refused" if refused.field else "refused without a name"
    if name in {*parsed.fields, *parsed.tied, parsed.cap_field, "model", "stream"}:
        return "passed"
    return "dropped" if name in parsed.changed else "dropped in silence"
