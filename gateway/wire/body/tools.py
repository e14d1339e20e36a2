"""Checks the tools that a client offers. Tools that no engine can use are dropped and reported.

An engine accepts functions, which the client runs. Other tools would be run by the servers of OpenAI or Anthropic: web
search, code execution, MCP servers. If a request has such tools, vLLM 0.32 refuses the whole request, or loops without
limit and calls other hosts. Coding agents offer such tools in every request: Codex `web_search` and `namespace`, Claude
Code `web_search_20250305`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from gateway.wire.body.checks import BadRequest, wrong_type

Renamed: TypeAlias = dict[str, tuple[str, str]]
"""(namespace, name) of a function, by its joined name at the engine."""

NOT_RENAMED: Final[Renamed] = {}
_NAMED_CHOICES: Final = frozenset({"function", "tool", "custom"})
_FREE_CHOICES: Final = frozenset({"auto", "none", "any", "required"})


class Kept:
    """The tools that are kept, and the types of those that are dropped."""

    __slots__ = ("changed", "dropped", "names", "renamed", "tools")

    def __init__(self, changed: list[str]) -> None:
        self.tools: list[Any] = []
        self.names: set[str] = set()
        self.dropped: dict[str, str] = {}
        """Type of each dropped tool, by its name."""
        self.renamed: Renamed = NOT_RENAMED
        self.changed = changed

    def keep(self, tool: dict[str, Any], name: str) -> None:
        """Keep a tool."""
        self.tools.append(tool)
        self.names.add(name)

    def drop(self, tool: dict[str, Any], name: Any) -> None:
        """Drop a tool that no engine can use."""
        given = tool.get("type")
        tool_type = given if type(given) is str else "untyped"
        self.dropped[name if type(name) is str else tool_type] = tool_type
        self.changed.append(f"tools.{tool_type}")


def settle(fields: dict[str, Any], kept: Kept) -> None:
    """Set the tools to those that are kept. A `tool_choice` of a dropped tool is refused."""
    choice = fields.get("tool_choice")
    if kept.dropped and choice is not None:
        _check_choice(choice, kept)
    if kept.tools or not fields["tools"]:
        if kept.dropped or kept.renamed:
            fields["tools"] = kept.tools
        return
    # Without tools, some servers refuse a tool choice and parallel_tool_calls.
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        fields.pop(name, None)


def _check_choice(choice: Any, kept: Kept) -> None:
    if type(choice) is str:
        if choice == "required" and not kept.tools:
            raise _nothing_left(kept)
        return
    if type(choice) is not dict:
        raise wrong_type("tool_choice", "a string or an object", choice)
    chosen = choice.get("type")
    if chosen == "any" and not kept.tools:
        raise _nothing_left(kept)
    if chosen == "allowed_tools":
        inner = choice.get("allowed_tools")
        _check_allowed(inner if type(inner) is dict else choice, kept)
        return
    if type(chosen) is str and chosen not in _NAMED_CHOICES and chosen not in _FREE_CHOICES:
        raise _gone(chosen)
    name = _chosen_name(choice)
    if name in kept.dropped and name not in kept.names:
        raise _gone(name)


def _check_allowed(allowed: dict[str, Any], kept: Kept) -> None:
    given = allowed.get("tools")
    if type(given) is not list:
        raise wrong_type("tool_choice.tools", "an array", given)
    for tool in given:
        if type(tool) is not dict:
            raise wrong_type("tool_choice.tools", "an array of objects", tool)
        name = _chosen_name(tool)
        if name not in kept.names and (name in kept.dropped or tool.get("type") in kept.dropped.values()):
            raise _gone(name or str(tool.get("type")))


def _chosen_name(choice: dict[str, Any]) -> str:
    """The name in a tool choice. It is in the object itself, or in the field whose name is the choice's type."""
    given = choice.get("type")
    inner = choice.get(given) if type(given) is str else None
    name = inner.get("name") if type(inner) is dict else choice.get("name")
    return name if type(name) is str else ""


def _gone(name: str) -> BadRequest:
    return BadRequest(
        "tool_choice",
        f"names the tool '{name[:64]}', which was dropped: only functions that the client runs are served",
    )


def _nothing_left(kept: Kept) -> BadRequest:
    types = ", ".join(sorted(set(kept.dropped.values())))[:200]
    return BadRequest(
        "tool_choice", f"demands a tool, but none is left: tools of type {types} are not served; send a function"
    )
