"""Conversations as engines read them: other items and blocks are dropped and named.

A client sends its whole history with every request, and what one answer left in it stays for the rest of the
session. So what was said by another server, or run by a tool that is not served here, must not fail the request.
Calls that the client has run are kept as calls of functions, since their results stand beside them. Outputs
whose call is gone go with it: vLLM refuses an output without a call.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.wire.body import tools
from gateway.wire.body.checks import BadRequest, short, wrong_type
from gateway.wire.body.content import MEDIA_PARTS, TEXT_PARTS, as_json

LEFT_OUT: Final = "[A %s stood here. It was left out: it cannot be read in this service.]"
_PICTURES: Final = frozenset({"image", "image_url", "input_image"})
_OTHER_CALLS: Final = {
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""Calls that the client ran, and what of each stands for arguments."""
_OTHER_OUTPUTS: Final = frozenset(
    {"custom_tool_call_output", "local_shell_call_output", "shell_call_output", "apply_patch_call_output"}
)
_SERVER_BLOCKS: Final = frozenset(
    {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "advisor_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
        "compaction",
    }
)
"""Blocks of Anthropic's API that its own servers leave in an answer."""


def chat(fields: dict[str, Any], caps: Caps, changed: list[str]) -> tools.Renamed:
    """A chat's tools as engines read them; its messages are left as they are."""
    if "tools" in fields:
        tools.chat(fields, changed)
    return tools.NOT_RENAMED


def responses(fields: dict[str, Any], caps: Caps, changed: list[str]) -> tools.Renamed:
    """The Responses API's input and tools as engines read them."""
    given = fields["input"]
    if type(given) is list:
        items = _items(given, fields, caps, changed)
        if not items and given:
            raise BadRequest("input", "holds nothing that an engine reads: send a message")
        fields["input"] = items
    return tools.responses(fields, changed) if "tools" in fields else tools.NOT_RENAMED


def _items(given: list[Any], fields: dict[str, Any], caps: Caps, changed: list[str]) -> list[Any]:
    out: list[Any] = []
    gone: set[str] = set()
    for i, item in enumerate(given):
        if type(item) is not dict:
            out.append(item)  # refused with its place when it is measured
            continue
        item_type = item.get("type", "message")
        if "id" in item and item["id"] is None:
            del item["id"]  # vLLM makes one where none is given, and refuses null (vllm#54224)
        if item_type == "message":
            out.append(item)
        elif item_type == "function_call":
            out.append(tools.flat(item, f"input[{i}]") if item.get("namespace") is not None else item)
        elif item_type == "function_call_output":
            call_id = item.get("call_id")
            if type(call_id) is not str or call_id not in gone:
                _without_files(item, "output", caps, changed)
                out.append(item)
        elif item_type == "reasoning":
            _reasoning(item, out, changed)
        elif type(item_type) is not str or item_type == "item_reference":
            out.append(item)  # likewise
        elif item_type in _OTHER_CALLS:
            changed.append(f"input.{item_type}")
            out.append(_call(item, _OTHER_CALLS[item_type]))
        elif item_type in _OTHER_OUTPUTS:
            changed.append(f"input.{item_type}")
            _without_files(item, "output", caps, changed)
            out.append({**_only(item, ("call_id", "output")), "type": "function_call_output"})
        else:
            changed.append(f"input.{item_type}")
            if item_type == "additional_tools":
                _hoist(item, fields, caps)
            elif type(item.get("call_id")) is str:
                gone.add(item["call_id"])
    return out


def _reasoning(item: dict[str, Any], out: list[Any], changed: list[str]) -> None:
    """Only the server that wrote `encrypted_content` can read it; vLLM refuses the request for it."""
    if item.get("encrypted_content") is not None:
        changed.append("input.encrypted_content")
    item.pop("encrypted_content", None)
    if item.get("summary") or item.get("content"):
        out.append(item)


def _call(item: dict[str, Any], holder: str) -> dict[str, Any]:
    arguments = item.get(holder)
    if type(arguments) is not dict:
        arguments = {holder: arguments}
    name = item.get("name", item["type"].removesuffix("_call"))
    return {
        "type": "function_call",
        "call_id": item.get("call_id") or item.get("id") or "",
        "name": name,
        "arguments": as_json(arguments).decode(),
    }


def _hoist(item: dict[str, Any], fields: dict[str, Any], caps: Caps) -> None:
    """Codex has a form of request in which the tools stand in the input."""
    more = item.get("tools")
    if type(more) is not list:
        return
    for tool in more:
        if type(tool) is not dict:
            raise wrong_type("input.additional_tools.tools", "an array of objects", tool)
    fields["tools"] = short([*fields.get("tools", ()), *more], "tools", caps)


def messages(fields: dict[str, Any], caps: Caps, changed: list[str]) -> tools.Renamed:
    """Anthropic's messages and tools as engines read them."""
    given = fields["messages"]
    if type(given) is list:
        for message in given:
            content = message.get("content") if type(message) is dict else None
            if type(content) is list:
                _blocks(message, content, caps, changed)
    if "tools" in fields:
        tools.messages(fields, changed)
    return tools.NOT_RENAMED


def _blocks(message: dict[str, Any], content: list[Any], caps: Caps, changed: list[str]) -> None:
    gone: set[int] = set()
    for i, block in enumerate(content):
        block_type = block.get("type") if type(block) is dict else None
        if block_type == "tool_result":
            _without_files(block, "content", caps, changed)
        elif type(block_type) is str and block_type in _SERVER_BLOCKS:
            changed.append(f"messages.{block_type}")
            gone.add(i)
    if gone:
        message["content"] = [block for i, block in enumerate(content) if i not in gone] or ""


def _without_files(holder: dict[str, Any], name: str, caps: Caps, changed: list[str]) -> None:
    """Put a text in the place of each file in a tool's result, and of each picture in a tier without media.

    Engines would refuse it, and with it every later request of the session.
    """
    content = holder.get(name)
    if type(content) is not list:
        return
    for i, part in enumerate(content):
        part_type = part.get("type") if type(part) is dict else None
        if type(part_type) is not str or part_type in TEXT_PARTS or (caps.media and part_type in MEDIA_PARTS):
            continue
        changed.append(f"tool_result.{part_type}")
        text = LEFT_OUT % ("picture" if part_type in _PICTURES else "file")
        content[i] = {"type": "input_text" if name == "output" else "text", "text": text}


def _only(item: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: item[name] for name in names if name in item}
