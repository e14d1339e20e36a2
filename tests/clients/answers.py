"""Answers of the scripted engine in the shape of each API, whole and as events: name ("" for none) and data."""

from __future__ import annotations

import json
import re
from typing import Any

from .asked import Reply

Body = dict[str, Any]
Events = list[tuple[str, Body | str]]


def pieces(text: str) -> list[str]:
    """The words of a text, each with the space before it."""
    return re.findall(r"\s*\S+\s*$|\s*\S+", text)


def counted(body: Body, reply: Reply) -> tuple[int, int]:
    """Prompt and output tokens, as this engine counts them."""
    return len(json.dumps(body)) // 4, max(1, len(pieces(reply.text or reply.arguments)))


def chat(body: Body, reply: Reply, number: int) -> Body:
    """A chat completion."""
    prompt, answer = counted(body, reply)
    call = {"id": f"call_{number}", "type": "function"} | {
        "function": {"name": reply.tool, "arguments": reply.arguments}
    }
    message: Body = {"role": "assistant", "content": reply.text or None}
    choice = {"index": 0, "message": message | ({"tool_calls": [call]} if reply.tool else {}), "logprobs": None}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body["model"],
        "choices": [choice | {"finish_reason": "tool_calls" if reply.tool else "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
    }


def chat_events(body: Body, reply: Reply, number: int) -> Events:
    """The chunks of a streamed chat completion, one for each word."""
    whole = chat(body, reply, number)
    usage = whole.pop("usage")
    head = whole | {"object": "chat.completion.chunk"}
    deltas: list[Body] = [{"role": "assistant", "content": ""}]
    if reply.tool:
        function = {"name": reply.tool, "arguments": ""}
        deltas.append({"tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]})
        for piece in pieces(reply.arguments):
            deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    else:
        deltas += [{"content": piece} for piece in pieces(reply.text)]
    events: Events = [("", head | {"choices": [{"index": 0, "delta": d, "finish_reason": None}]}) for d in deltas]
    last = {"index": 0, "delta": {}, "finish_reason": whole["choices"][0]["finish_reason"]}
    events.append(("", head | {"choices": [last]}))
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(("", head | {"choices": [], "usage": usage}))
    return [*events, ("", "[DONE]")]


def responses(body: Body, reply: Reply, number: int) -> Body:
    """A response."""
    prompt, answer = counted(body, reply)
    part = {"type": "output_text", "text": reply.text, "annotations": []}
    item: Body = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": [part]}
    if reply.tool:
        item = {"id": f"fc_{number}", "type": "function_call", "call_id": f"call_{number}", "name": reply.tool}
        item["arguments"] = reply.arguments
    echoed = {
        name: body.get(name) for name in ("instructions", "max_output_tokens", "temperature", "top_p", "metadata")
    }
    return echoed | {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": body["model"],
        "output": [item | {"status": "completed"}],
        "parallel_tool_calls": True,
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + answer,
        },
    }


def responses_events(body: Body, reply: Reply, number: int) -> Events:
    """Its events in the order of the API."""
    whole = responses(body, reply, number)
    item = whole["output"][0]
    begun = whole | {"status": "in_progress", "output": [], "usage": None}
    at = {"item_id": item["id"], "output_index": 0}
    events: list[tuple[str, Body]] = [("response.created", {"response": begun})]
    events.append(("response.in_progress", {"response": begun}))
    empty: dict[str, Any] = {"arguments": ""} if reply.tool else {"content": []}
    added = item | empty | {"status": "in_progress"}
    events.append(("response.output_item.added", {"output_index": 0, "item": added}))
    if reply.tool:
        events += [("response.function_call_arguments.delta", at | {"delta": p}) for p in pieces(reply.arguments)]
        done = at | {"name": reply.tool, "arguments": reply.arguments}
        events.append(("response.function_call_arguments.done", done))
    else:
        at |= {"content_index": 0}
        part = item["content"][0]
        events.append(("response.content_part.added", at | {"part": part | {"text": ""}}))
        for piece in pieces(reply.text):
            events.append(("response.output_text.delta", at | {"delta": piece, "logprobs": []}))
        events.append(("response.output_text.done", at | {"text": reply.text, "logprobs": []}))
        events.append(("response.content_part.done", at | {"part": part}))
    events.append(("response.output_item.done", {"output_index": 0, "item": item}))
    events.append(("response.completed", {"response": whole}))
    return [(name, {"type": name, "sequence_number": i} | data) for i, (name, data) in enumerate(events)]


def messages(body: Body, reply: Reply, number: int) -> Body:
    """A message."""
    prompt, answer = counted(body, reply)
    block: Body = {"type": "text", "text": reply.text}
    if reply.tool:
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": reply.tool, "input": json.loads(reply.arguments)}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [block],
        "stop_reason": "tool_use" if reply.tool else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": prompt, "output_tokens": answer},
    }


def messages_events(body: Body, reply: Reply, number: int) -> Events:
    """Its events in the order of the API."""
    whole = messages(body, reply, number)
    usage = whole["usage"]
    begun = whole | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 0}}
    block = whole["content"][0] | (dict[str, Any](input={}) if reply.tool else {"text": ""})
    events: list[tuple[str, Body]] = [("message_start", {"message": begun})]
    events.append(("content_block_start", {"index": 0, "content_block": block}))
    events.append(("ping", {}))
    for piece in pieces(reply.arguments or reply.text):
        text, arguments = {"type": "text_delta", "text": piece}, {"type": "input_json_delta", "partial_json": piece}
        events.append(("content_block_delta", {"index": 0, "delta": arguments if reply.tool else text}))
    events.append(("content_block_stop", {"index": 0}))
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events.append(("message_delta", {"delta": ended, "usage": usage}))
    events.append(("message_stop", {}))
    return [(name, {"type": name} | data) for name, data in events]


def scored(body: Body) -> Body:
    """Prompts of token ids with the log-probability of each token, and one more token. All tokens are equally likely,
    so the shorter of two texts is more likely.
    """
    assert (body["echo"], body["max_tokens"]) == (True, 1), body
    choices = []
    for index, ids in enumerate(body["prompt"]):
        tokens = [str(token) for token in ids] + ["more"]
        top = [None, *({token: -1.0} for token in tokens[1:])]
        log_probs = {"tokens": tokens, "token_logprobs": [None, *[-1.0] * len(ids)], "top_logprobs": top}
        choices.append({"index": index, "text": "", "logprobs": log_probs, "finish_reason": "length"})
    prompt = sum(map(len, body["prompt"]))
    usage = {"prompt_tokens": prompt, "completion_tokens": len(choices), "total_tokens": prompt + len(choices)}
    return {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": choices, "usage": usage}


def embeddings(body: Body) -> Body:
    """A vector of four numbers for each input, as floats or in base64."""
    given = body["input"]
    count = len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1
    vector: object = [0.5, -0.5, 0.25, 1.0]
    if body.get("encoding_format") == "base64":
        vector = "AAAAPwAAAL8AAIA+AACAPw=="  # the same four as little-endian float32
    data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(count)]
    usage = {"prompt_tokens": 4 * count, "total_tokens": 4 * count}
    return {"object": "list", "model": body["model"], "data": data, "usage": usage}


def failing(path: str, events: Events) -> Events:
    """The first half of a stream and an error, as vLLM writes it for each API."""
    error = {"message": "The engine has failed.", "type": "InternalServerError", "param": None, "code": 500}
    named: Body = {"type": "error", "error": {"type": "internal_error", "message": "The engine has failed."}}
    ends: dict[str, Events] = {
        "/v1/chat/completions": [("", {"error": error}), ("", "[DONE]")],
        "/v1/responses": [("error", error | {"type": "error", "code": "server_error", "sequence_number": 99})],
        "/v1/messages": [("error", named)],
    }
    return events[: len(events) // 2] + ends[path]
