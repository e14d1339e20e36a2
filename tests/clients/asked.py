"""Reads, from a request of any of the three APIs, the part that decides its answer."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

HELLO = "Hello there, here is an answer in a few words."
CALL = re.compile(r"CALL (\w+) (\{.*\})")
"""In a prompt: the tool that is to be called, and its arguments."""

PICTURES = ("image_url", "input_image", "image")
PICTURE = "<picture>"
"""In place of a picture."""

FAIL = "FAIL IN THE MIDDLE"
"""In a prompt: the stream ends in an error."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The part of a request that decides the answer."""

    prompt: str = ""
    """Text of the last user message."""
    results: list[str] = field(default_factory=list)
    """Results of tools that come after that message."""
    tools: dict[str, Any] = field(default_factory=dict)
    """Schema of the arguments, by name."""
    forced: str | None = None
    """Name of the tool that must be called; "" if any tool may be; None without such a demand."""
    schema: Any = None
    """JSON Schema of the answer; None without one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer: a text, or one call of a tool. With `fails`, a stream ends in an error."""

    text: str = ""
    tool: str = ""
    arguments: str = ""
    fails: bool = False


def reply(asked: Asked) -> Reply:
    """The answer to a request, and whether it fails."""
    return replace(_reply(asked), fails=FAIL in asked.prompt)


def _reply(asked: Asked) -> Reply:
    """A call if the prompt says CALL or the tool is forced, else JSON that fits the schema, else a text."""
    called = CALL.search(asked.prompt)
    if called and not asked.results and called[1] in asked.tools:
        return Reply(tool=called[1], arguments=called[2])
    if asked.forced is not None and asked.tools:
        name = asked.forced or next(iter(asked.tools))
        schema = asked.tools[name]
        return Reply(tool=name, arguments=json.dumps(sample(schema, schema)))
    if asked.schema is not None:
        return Reply(json.dumps(sample(asked.schema, asked.schema)))
    if PICTURE in asked.prompt:
        return Reply("I see a picture.")
    if asked.results:
        return Reply(f"The tool said: {asked.results[-1]}")
    return Reply(HELLO)


def sample(schema: Any, root: Any) -> Any:
    """The simplest value that a JSON Schema allows; `root` is where its references lead."""
    if reference := schema.get("$ref"):
        found = root
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        return sample(found, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for kind in ("anyOf", "oneOf", "allOf"):
        if kind in schema:
            return sample(schema[kind][0], root)
    match schema.get("type", "object"):
        case "object":
            wanted = schema.get("required", [])
            return {name: sample(part, root) for name, part in schema.get("properties", {}).items() if name in wanted}
        case "array":
            return [sample(schema.get("items", {"type": "string"}), root)]
        case "string":
            return "Paris"
        case "integer":
            return 7
        case "number":
            return 7.5
        case "boolean":
            return True
        case _:
            return None


def text_of(content: Any) -> str:
    """The text of a message or a result; its parts may be texts and pictures, too."""
    if isinstance(content, list):
        return " ".join(PICTURE if part["type"] in PICTURES else part.get("text", "") for part in content)
    return content or ""


def of_chat(body: dict[str, Any]) -> Asked:
    """POST /v1/chat/completions."""
    prompt, results = "", list[Any]()
    for message in body["messages"]:
        if message["role"] == "user":
            prompt, results = text_of(message["content"]), []
        elif message["role"] == "tool":
            results.append(text_of(message["content"]))
    tools = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in body.get("tools") or []}
    chosen = body.get("tool_choice")
    named = chosen["function"]["name"] if isinstance(chosen, dict) else None
    shape = body.get("response_format") or {}
    schema = shape["json_schema"].get("schema") if shape.get("type") == "json_schema" else None
    return Asked(prompt, results, tools, "" if chosen == "required" else named, schema)


def of_responses(body: dict[str, Any]) -> Asked:
    """POST /v1/responses."""
    prompt, results = "", list[Any]()
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        if item.get("role") == "user":
            prompt, results = text_of(item["content"]), []
        elif item.get("type") == "function_call_output":
            results.append(text_of(item["output"]))
    tools = {tool["name"]: tool.get("parameters") or {} for tool in body.get("tools") or [] if tool.get("name")}
    chosen = body.get("tool_choice")
    named = chosen.get("name") if isinstance(chosen, dict) else None
    schema = ((body.get("text") or {}).get("format") or {}).get("schema")
    return Asked(prompt, results, tools, "" if chosen == "required" else named, schema)


def of_messages(body: dict[str, Any]) -> Asked:
    """POST /v1/messages."""
    prompt, results = "", list[Any]()
    for message in body["messages"]:
        if message["role"] != "user":
            continue
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found = [text_of(part.get("content")) for part in parts if part["type"] == "tool_result"]
        if found:
            results += found
        else:
            prompt, results = text_of(parts), []
    tools = {tool["name"]: tool.get("input_schema", {}) for tool in body.get("tools") or []}
    chosen = body.get("tool_choice") or {}
    forced = {"any": "", "tool": chosen.get("name")}.get(str(chosen.get("type")))
    shape = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    return Asked(prompt, results, tools, forced, shape.get("schema"))
