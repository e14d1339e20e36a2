"""Converts input and tools of the Responses API to the forms that engines read. Other items are dropped or rewritten,
and reported.

A client sends its whole history with every request. So parts of the history that came from another server, or tools
that are not served here, must not make the request fail. Calls that the client has run become function calls, because
their results are in the history. An output without its call is dropped, because vLLM would refuse it.

A namespace is a group of functions; each MCP server has one. Its functions are sent under the name
`namespace__function`, as vLLM itself does. The client needs the two names separately in a call (openai/codex#23186).
`Renamed` keeps them.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.wire.body import prompt
from gateway.wire.body.checks import MAX_ENTRIES, BadRequest, short, wrong_type
from gateway.wire.body.content import as_json
from gateway.wire.body.tool_results import without_files
from gateway.wire.body.tools import NOT_RENAMED, Kept, Renamed, settle

SEPARATOR: Final = "__"
_OTHER_CALLS: Final = {
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""By type of a call that the client ran: the field that becomes the function's arguments."""
_OTHER_OUTPUTS: Final = frozenset(
    {"custom_tool_call_output", "local_shell_call_output", "shell_call_output", "apply_patch_call_output"}
)


def fit(fields: dict[str, Any], caps: Caps, changed: list[str]) -> Renamed:
    """Rewrite input and tools for engines. Engines store answers by default, so `store: false` is sent if the tier does
    not allow storing.
    """
    if not caps.stored_responses:
        fields["store"] = False
    given = fields["input"]
    if type(given) is list:
        items = _items(prompt.items(given, "input"), fields, caps, changed)
        if not items and given:
            raise BadRequest("input", "must hold a message: nothing in it reaches an engine")
        fields["input"] = items
    return _fit_tools(fields, changed) if "tools" in fields else NOT_RENAMED


def _items(given: list[Any], fields: dict[str, Any], caps: Caps, changed: list[str]) -> list[Any]:
    out: list[Any] = []
    gone: set[str] = set()
    more: list[Any] = []
    for i, item in enumerate(given):
        if type(item) is not dict:
            out.append(item)  # the measuring of the prompt refuses it, with its place in the error
            continue
        item_type = item.get("type", "message")
        if "id" in item and item["id"] is None:
            del item["id"]  # vLLM makes up a missing id, but refuses null (vllm#54224)
        if item_type == "message":
            out.append(item)
        elif item_type == "function_call":
            out.append(_flat(item, f"input[{i}]") if item.get("namespace") is not None else item)
        elif item_type == "function_call_output":
            call_id = item.get("call_id")
            if type(call_id) is not str or call_id not in gone:
                without_files(item, "output", caps, changed)
                out.append(item)
        elif item_type == "reasoning":
            _reasoning(item, out, changed)
        elif type(item_type) is not str:
            out.append(item)  # the measuring of the prompt refuses this, too
        elif item_type == "item_reference":
            _refer(item, f"input[{i}]")
            changed.append("input.item_reference")
        elif item_type in _OTHER_CALLS:
            changed.append(f"input.{item_type}")
            out.append(_call(item, _OTHER_CALLS[item_type]))
        elif item_type in _OTHER_OUTPUTS:
            changed.append(f"input.{item_type}")
            without_files(item, "output", caps, changed)
            out.append({**_only(item, ("call_id", "output")), "type": "function_call_output"})
        else:
            changed.append(f"input.{item_type}")
            if item_type == "additional_tools":
                more += _tools_in(item)
            elif type(item.get("call_id")) is str:
                gone.add(item["call_id"])
    if more:
        fields["tools"] = short([*fields.get("tools", ()), *more], "tools", caps)
    return out


def _refer(item: dict[str, Any], field: str) -> None:
    """Refuse a reference to an earlier item, unless it is reasoning, which no later answer needs.

    The AI SDK refers to the items of earlier answers unless its user sets `store: false`.
    """
    if not str(item.get("id")).startswith("rs_"):
        advice = "send the item itself, as the AI SDK does with 'store: false' in its provider options"
        raise BadRequest(field, f"item_reference is not served here, because earlier items are not looked up: {advice}")


def _reasoning(item: dict[str, Any], out: list[Any], changed: list[str]) -> None:
    """Drop `encrypted_content`. Only the server that wrote it can read it, and vLLM would refuse it."""
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


def _tools_in(item: dict[str, Any]) -> list[Any]:
    """Tools in an item of the input, which become tools of the request. Codex sends some requests like this."""
    given = item.get("tools")
    if type(given) is not list:
        return []
    for tool in given:
        if type(tool) is not dict:
            raise wrong_type("input.additional_tools.tools", "an array of objects", tool)
    return given


def _fit_tools(fields: dict[str, Any], changed: list[str]) -> Renamed:
    """Keep the tools that are functions, including those in namespaces."""
    kept = Kept(changed)
    for i, tool in enumerate(fields["tools"]):
        tool_type, name = tool.get("type"), str(tool.get("name"))
        if tool_type == "function" and name not in kept.renamed:
            kept.keep(tool, name)
        elif tool_type == "namespace":
            _flatten(tool, f"tools[{i}]", kept)
        else:
            kept.drop(tool, tool.get("name"))
    if len(kept.tools) > MAX_ENTRIES:
        raise BadRequest("tools", f"must have at most {MAX_ENTRIES} functions in all", "array_above_max_length")
    choice = fields.get("tool_choice")
    if type(choice) is dict and choice.get("namespace") is not None:
        fields["tool_choice"] = _flat(choice, "tool_choice")
    settle(fields, kept)
    return kept.renamed


def _flat(call: dict[str, Any], field: str) -> dict[str, Any]:
    """A call or choice of a function in a namespace, with the joined name for the engine."""
    namespace, name = call["namespace"], call.get("name")
    if type(namespace) is not str or type(name) is not str:
        raise BadRequest(f"{field}.namespace", "must be a string, and so must name")
    out = {key: value for key, value in call.items() if key != "namespace"}
    out["name"] = namespace + SEPARATOR + name
    return out


def _flatten(tool: dict[str, Any], field: str, kept: Kept) -> None:
    namespace = tool.get("name")
    if type(namespace) is not str:
        raise BadRequest(f"{field}.name", "must be a string")
    given = tool.get("tools")
    if type(given) is not list:
        raise wrong_type(f"{field}.tools", "an array", given)
    for i, inner in enumerate(given):
        if type(inner) is not dict:
            raise wrong_type(f"{field}.tools[{i}]", "an object", inner)
        name = inner.get("name")
        if inner.get("type") != "function":
            kept.drop(inner, name)
            continue
        if type(name) is not str:
            raise BadRequest(f"{field}.tools[{i}].name", "must be a string")
        known_as = namespace + SEPARATOR + name
        # two functions have this joined name, so the client could not tell which was called
        if known_as in kept.names:
            kept.drop(inner, name)
            continue
        if not kept.renamed:
            kept.renamed = {}
        kept.renamed[known_as] = (namespace, name)
        kept.keep({**inner, "name": known_as}, known_as)
    kept.changed.append("tools.namespace")


def _only(item: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: item[name] for name in names if name in item}
