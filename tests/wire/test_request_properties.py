"""No body gets past the caps, and no bytes make the parser raise.

TAILGATE_EXAMPLES sets the number of examples of the first property (2,000); the others take a quarter of that.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.policy import Caps
from gateway.core.request import GENERATING, Endpoint
from gateway.wire.apis.fields import STRIP
from gateway.wire.apis.table import API_OF, APIS
from gateway.wire.body.bounds import engine_option
from gateway.wire.body.placeholders import Placeholders
from gateway.wire.render import render
from gateway.wire.request import BadRequest, parse
from tests.effort import examples

from .bodies import MINIMAL

COUNT = int(os.environ.get("TAILGATE_EXAMPLES", examples(2000)))
pytestmark = pytest.mark.timeout(600 + COUNT // 4)  # 2,000 take twenty seconds on an idle machine
EXAMPLES = settings(
    max_examples=COUNT,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="TAILGATE_EXAMPLES" not in os.environ,
    database=None,
)
FEWER = settings(EXAMPLES, max_examples=COUNT // 4)
OUTPUT_CAPS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}

GOVERNED = [
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of", "min_tokens"),
    *("thinking", "thinking_token_budget", "logprobs", "top_logprobs", "prompt_logprobs", "echo"),
    *("stream", "stream_options", "stop", "stop_sequences", "store", "background", "priority", "ignore_eos"),
]

caps_strategy = st.builds(
    Caps,
    max_tokens_limit=st.integers(1, 5000),
    n=st.integers(1, 4),
    best_of=st.integers(1, 4),
    top_logprobs=st.integers(0, 20),
    prompt_logprobs=st.integers(0, 3),
    stop=st.sampled_from([(), ("END",), ("END", "a")]),
    engine_priority=st.sampled_from([None, 0, 5]),
    media=st.booleans(),
)


class Raw:
    """A number in a spelling that clients may use but Python never writes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Raw({self.text!r})"


def disguised(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from(
        [
            *(name, name, name, name.upper(), name.title(), name.replace("_", "-"), name + " ", name + "\x00"),
            *(name.replace("s", "\u017f"), name.replace("k", "\u212a"), name[0].upper() + name[1:]),
            "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in name),
        ]
    )


numbers = st.one_of(
    st.integers(-3, 6000),
    st.sampled_from([2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**40, -(2**63)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["1e5", "1E2", "1e400", "-0", "0.0", "5.0", "1e-1", "NaN", "Infinity", "+7", "007"]).map(Raw),
    st.sampled_from(["5", "100000", " 7", "1_000", "0x10", "٣", "True", ""]),
    st.booleans(),
    st.none(),
)
values = st.recursive(
    st.one_of(numbers, st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["include_usage", "budget_tokens", "type", "n", "max_tokens", "effort", "a"]), inner
        ),
    ),
    max_leaves=5,
)
some_tools = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["function", "custom", "namespace", "web_search", "bash_20250124", None, 5]),
            "name": st.sampled_from(["f", "g", "a__f", 5, ["f"]]),
            "function": st.just({"name": "f"}),
            "input_schema": st.just({"type": "object"}),
            "tools": st.lists(st.sampled_from([{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}, 5])),
        },
    ),
    max_size=3,
)
some_choices = st.sampled_from(
    ["auto", "required", {"type": "any"}, {"type": "web_search"}, {"type": "function", "name": "f", "namespace": "a"}]
)
some_items = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                [
                    *("message", "function_call", "function_call_output", "reasoning", "custom_tool_call"),
                    *("web_search_call", "tool_search_output", "additional_tools", "local_shell_call", "new_thing"),
                ]
            )
        },
        optional={
            "role": st.just("user"),
            "content": st.sampled_from(["hi", [{"type": "input_text", "text": "hi"}]]),
            "namespace": st.sampled_from(["a", 5]),
            "name": st.just("f"),
            "id": st.none(),
            "call_id": st.sampled_from(["c", "d", 5, ["c"]]),
            "output": st.sampled_from(["ok", [{"type": "input_image", "image_url": "data:,"}]]),
            "input": st.just("text"),
            "encrypted_content": st.just("opaque"),
            "tools": some_tools,
        },
    ),
    min_size=1,
    max_size=4,
)
likely = {
    "tools": some_tools,
    "tool_choice": some_choices,
    "input": some_items,
    "stream": st.booleans(),
    "stream_options": st.dictionaries(st.sampled_from(["include_usage", "continuous_usage_stats", "x"]), st.booleans()),
    "stop": st.one_of(st.text(min_size=1, max_size=3), st.lists(st.text(min_size=1, max_size=3), max_size=4)),
    "stop_sequences": st.lists(st.text(min_size=1, max_size=3), max_size=4),
    "thinking": st.fixed_dictionaries(
        {"type": st.just("enabled"), "budget_tokens": st.one_of(st.integers(1, 6000), numbers)}
    ),
    "prompt": st.one_of(st.text(max_size=5), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    "model": st.sampled_from(["llama", "gpt-4o"]),
    "include": st.sampled_from([[], ["message.output_text.logprobs"]]),
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["enable_thinking", "thinking", "x"]), st.booleans()),
    **dict.fromkeys(["echo", "store", "background"], st.booleans()),
    **dict.fromkeys(["logit_bias", "reasoning", "text"], st.just({})),
    **dict.fromkeys(["functions", "documents", "stop_token_ids", "bad_words"], st.just([])),
    **dict.fromkeys(["allowed_token_ids", "logprob_token_ids"], st.lists(st.integers(0, 9), max_size=6)),
    **dict.fromkeys(["instructions", "suffix", "reasoning_effort", "verbosity"], st.text(max_size=5)),
}


@st.composite
def bodies(draw: st.DrawFn, endpoint: Endpoint, caps: Caps, granted: int) -> bytes:
    """A valid body with added fields: known, disguised, doubled, of every type and spelling."""
    names = sorted(API_OF[endpoint].shape.rules)
    governed = [name for name in GOVERNED if name in names]
    bounds = {name: getattr(caps, name) for name in ("n", "best_of", "top_logprobs", "prompt_logprobs")}
    pairs: list[tuple[str, Any]] = list(MINIMAL[endpoint].items())
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(governed if draw(st.integers(0, 3)) else names))
        bound = bounds.get(name, draw(st.sampled_from([granted, caps.max_tokens_limit, caps.top_logprobs])))
        fitting = likely.get(name, st.sampled_from([1, bound - 1, bound, bound, bound + 1]))
        value = draw(fitting if draw(st.integers(0, 7)) else st.one_of(st.booleans(), values))
        if draw(st.integers(0, 7)) == 0:
            name = draw(disguised(name))
        pairs.insert(draw(st.integers(0, len(pairs))), (name, value))
    text = "{" + ",".join(f"{spelled(draw, name)}:{encoded(value)}" for name, value in pairs) + "}"
    encoding = draw(st.sampled_from(["utf-8"] * 30 + ["utf-8-sig", "utf-16", "utf-32", "latin-1"]))
    return text.encode(encoding, "replace")


def spelled(draw: st.DrawFn, name: str) -> str:
    """The name as JSON, perhaps with escaped letters: a parser sees the same."""
    if draw(st.integers(0, 3)):
        return json.dumps(name, ensure_ascii=draw(st.booleans()))
    return '"' + "".join(f"\\u{ord(c):04x}" for c in name) + '"'


def encoded(value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, list):
        return "[" + ",".join(map(encoded, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{encoded(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), "a key stands twice"
    return dict(pairs)


def is_integer(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def check(endpoint: Endpoint, document: dict[str, Any], granted: int, caps: Caps) -> None:
    """Check all promises of a tier's caps for the body that an engine reads."""
    shape = API_OF[endpoint].shape
    stripped = {name for name, rule in shape.rules.items() if rule is STRIP} - {"priority"}
    allowed = set(shape.rules) - stripped
    if caps.engine_priority is None or not shape.priority:
        allowed.discard("priority")
    assert document.keys() <= allowed
    assert document.get("priority") == (caps.engine_priority if shape.priority else None)
    assert document["model"] == "upstream"

    caps_written = [document[name] for name in OUTPUT_CAPS if name in document]
    assert caps_written == ([granted] if endpoint in GENERATING else [])
    assert is_integer(document.get("n", 1), 1, caps.n)
    assert is_integer(document.get("best_of", 1), 1, caps.best_of)
    assert is_integer(document.get("min_tokens", 0), 0, granted)
    assert is_integer(document.get("thinking_token_budget", 0), 0, granted)
    assert is_integer(document.get("top_logprobs", 0), 0, caps.top_logprobs)
    assert is_integer(document.get("prompt_logprobs", 0), 0, caps.prompt_logprobs)
    if caps.prompt_logprobs == 0:
        assert "prompt_logprobs" not in document
    logprobs = document.get("logprobs", False)
    assert isinstance(logprobs, bool) if endpoint is Endpoint.CHAT else is_integer(logprobs or 0, 0, caps.top_logprobs)
    if caps.top_logprobs == 0:
        assert logprobs is False
    if document.get("echo") and endpoint is Endpoint.CHAT:
        assert is_integer(document.get("top_logprobs", 0), 0, caps.prompt_logprobs)
        assert caps.prompt_logprobs > 0
    elif document.get("echo") and "logprobs" in document:
        assert is_integer(logprobs, 0, caps.prompt_logprobs)
        assert caps.prompt_logprobs > 0
    budget = document.get("thinking", {}).get("budget_tokens", 0)
    assert is_integer(budget, 0, granted - 1)

    guarded = {name for name, rule in shape.rules.items() if rule is engine_option}
    assert all(document[name] is False or document[name] == {} for name in guarded & document.keys())
    if document.get("use_beam_search"):
        assert caps.best_of > 1
    assert isinstance(document.get("stream", False), bool)
    options = document.get("stream_options")
    if document.get("stream") and shape.usage:
        assert options is not None
        assert options.pop("include_usage") is True
        assert options in ({}, {"continuous_usage_stats": True})
    else:
        assert options is None
    assert document.get("store", False) is False
    assert "background" not in document
    if shape.stop is not None and caps.stop:
        assert set(caps.stop) <= set(document[shape.stop])


def check_tools(endpoint: Endpoint, document: dict[str, Any], caps: Caps) -> None:
    """Check that only functions of the client, and only fields that engines read, are left."""
    tools = document.get("tools", [])
    if endpoint is Endpoint.MESSAGES:
        assert all(tool.get("type") in ("custom", None) for tool in tools)
    elif endpoint in GENERATING:  # counting tokens calls no tools
        assert all(tool.get("type", "function") == "function" for tool in tools)
    if endpoint is Endpoint.RESPONSES and type(document["input"]) is list:
        for item in document["input"]:
            assert item.get("type") in ("message", "function_call", "function_call_output", "reasoning")
            assert not {"namespace", "encrypted_content"} & item.keys() or item["type"] == "message"
            if not caps.media and type(item.get("output")) is list:
                assert all(part["type"] == "input_text" for part in item["output"])


endpoints = st.sampled_from(list(MINIMAL))


def test_forwarded_request_obeys_the_caps() -> None:
    passed = 0

    @EXAMPLES
    @given(data=st.data(), endpoint=endpoints, caps=caps_strategy, share=st.floats(0, 1))
    def holds(data: st.DataObject, endpoint: Endpoint, caps: Caps, share: float) -> None:
        nonlocal passed
        granted = max(1, round(share * caps.max_tokens_limit))
        try:
            parsed = parse(endpoint, data.draw(bodies(endpoint, caps, granted)), caps)
        except BadRequest:
            return
        passed += 1
        sent = render(parsed, "upstream", granted)
        document = json.loads(sent.decode("utf-8"), object_pairs_hook=without_duplicates)
        check(endpoint, document, granted, caps)
        check_tools(endpoint, document, caps)
        assert parsed.choices <= max(caps.n, caps.best_of) * caps.batch

    holds()
    assert passed > 0.25 * COUNT  # else this would test only refusals


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**64), 2**65), st.floats(), st.text(max_size=12)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(
                st.sampled_from(
                    ["role", "content", "type", "text", "image_url", "url", "source", "tool_use", "output"]
                ),
                st.text(max_size=6),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


parts = st.fixed_dictionaries(
    {}, optional={"type": st.sampled_from(["text", "image_url", "tool_result", "image"]), "content": json_values}
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.just("user")}, optional={"content": st.one_of(json_values, st.lists(parts))}),
    max_size=3,
)
all_fields = st.dictionaries(
    st.sampled_from(sorted({name for api in APIS for name in api.shape.rules})),
    st.one_of(json_values, messages),
    max_size=6,
)


@FEWER
@given(endpoint=endpoints, fields=all_fields, caps=caps_strategy)
def test_request_parser_raises_only_bad_request_for_any_document(
    endpoint: Endpoint, fields: dict[str, Any], caps: Caps
) -> None:
    body = json.dumps({**MINIMAL[endpoint], **fields}).encode()
    try:
        parsed = parse(endpoint, body, caps)
    except BadRequest:
        return
    json.loads(render(parsed, "upstream", 1))
    assert parsed.prompt_bytes >= 0
    assert parsed.prompt_bytes + Placeholders(parsed.fields).correction >= 0
    assert parsed.choices >= 1


@FEWER
@given(
    endpoint=endpoints,
    body=st.one_of(
        st.binary(max_size=60),
        st.text(alphabet='{}[]":,0123456789eE+-.\\u truefalsn', max_size=60).map(str.encode),
        st.tuples(st.sampled_from(list(MINIMAL.values())), st.integers(0, 80), st.binary(min_size=1, max_size=3)).map(
            lambda t: json.dumps(t[0]).encode()[: t[1]] + t[2] + json.dumps(t[0]).encode()[t[1] :]
        ),
    ),
)
def test_request_parser_raises_only_bad_request_for_any_bytes(endpoint: Endpoint, body: bytes) -> None:
    try:
        parsed = parse(endpoint, body, Caps())
    except BadRequest:
        return
    assert parsed.endpoint is endpoint
