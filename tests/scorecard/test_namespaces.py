"""Functions in a namespace, as Codex offers those of MCP servers: the engine sees flat names, the client its own."""

from __future__ import annotations

import json

import pytest

from .capture import LAST_CHUNK, STREAM_HEAD, Answer, Capture, chunk, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import MODEL, request

TOOL = {"type": "function", "name": "ls", "parameters": {"type": "object"}}
ASKED = {
    "model": MODEL,
    "input": "What is there?",
    "tools": [{"type": "namespace", "name": "mcp__disk", "tools": [TOOL]}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "mcp__disk__ls", "arguments": "{}"}
SHOWN = {**CALL, "name": "ls", "namespace": "mcp__disk"}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "model": MODEL,
    "status": "completed",
    "output": [CALL],
    "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
}


def event(name: str, **fields: object) -> bytes:
    data = json.dumps({"type": name, **fields}, separators=(",", ":"))
    return chunk(f"event: {name}\ndata: {data}\n\n".encode())


STREAM = b"".join(
    (
        STREAM_HEAD,
        event("response.created", response={**RESPONSE, "output": []}),
        event("response.output_item.added", output_index=0, item={**CALL, "arguments": ""}),
        event("response.function_call_arguments.delta", output_index=0, item_id="fc_1", delta="{}"),
        event("response.output_item.done", output_index=0, item=CALL),
        event("response.completed", response=RESPONSE),
        LAST_CHUNK,
    )
)


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
@pytest.mark.parametrize("held", [True, False])
async def test_streamed_tool_call_reaches_the_client_with_name_and_namespace(
    gateway: GatewayFactory, capture: Capture, connect: Connect, version: str, held: bool
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    delta = event("response.output_text.delta", output_index=0, item_id="m", delta="I look.")
    stream = STREAM if held else STREAM.replace(STREAM_HEAD, STREAM_HEAD + delta)
    capture.answer = lambda call: Answer(stream)
    answer = await client.ask(request("/v1/responses", json.dumps({**ASKED, "stream": True}).encode(), version=version))
    assert json.loads(capture.calls[0].body)["tools"] == [{**TOOL, "name": "mcp__disk__ls"}]
    assert answer.whole
    items = [event["item"] for event in answer.events if "item" in event]
    assert items == [{**SHOWN, "arguments": ""}, SHOWN]
    assert answer.events[-1]["response"]["output"] == [SHOWN]


@pytest.mark.parametrize("aggregate", ["", "aggregate: true"])
async def test_whole_answer_has_tool_calls_with_name_and_namespace(
    gateway: GatewayFactory, capture: Capture, connect: Connect, aggregate: str
) -> None:
    gw = await gateway(rules(capture.url, tier=aggregate))
    client = await connect(gw.url)
    capture.answer = lambda call: Answer(STREAM if aggregate else whole(json.dumps(RESPONSE).encode()))
    answer = await client.ask(request("/v1/responses", json.dumps(ASKED).encode()))
    assert answer.json()["output"] == [SHOWN]
