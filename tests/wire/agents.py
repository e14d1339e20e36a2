"""Requests of coding agents: the fields are those of Codex 0.169 and Claude Code 2.1, the texts are ours."""

from __future__ import annotations

from typing import Any

SHELL: dict[str, Any] = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
PLAN: dict[str, Any] = {**SHELL, "name": "update_plan", "description": "Notes a plan."}
SEARCH: dict[str, Any] = {"type": "web_search", "external_web_access": False, "search_content_types": ["text", "image"]}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"},
}
LIST: dict[str, Any] = {**SHELL, "name": "list_files", "description": "Lists files."}
SERVER: dict[str, Any] = {"type": "namespace", "name": "mcp__disk", "description": "A disk.", "tools": [LIST]}
FIND_TOOLS: dict[str, Any] = {"type": "tool_search", "execution": "client", "description": "", "parameters": {}}


def said(role: str, text: str) -> dict[str, Any]:
    part = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": part, "text": text}]}


CODEX_FIRST: dict[str, Any] = {
    "model": "llama",
    "instructions": "You write programs.",
    "input": [said("developer", "Be brief."), said("user", "The folder is empty."), said("user", "Say hello.")],
    "tools": [SHELL, PLAN, PATCH, SEARCH, FIND_TOOLS, SERVER],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto", "context": "all"},
    "store": False,
    "stream": True,
    "stream_options": {"reasoning_summary_delivery": "late"},
    "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
    "service_tier": "priority",
    "prompt_cache_key": "0199-thread",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "1"},
}
CODEX_LATER: dict[str, Any] = {
    **CODEX_FIRST,
    "input": [
        *CODEX_FIRST["input"],
        {"type": "reasoning", "id": None, "summary": [], "content": None, "encrypted_content": "opaque"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a plan"}], "encrypted_content": None},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "hello"}},
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a.py"}]},
        {
            "type": "function_call",
            "name": "list_files",
            "namespace": "mcp__disk",
            "arguments": "{}",
            "call_id": "c2",
            "id": None,
        },
        {"type": "function_call_output", "call_id": "c2", "output": "b.py"},
        {"type": "custom_tool_call", "status": "completed", "call_id": "c3", "name": "apply_patch", "input": "+1"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "Done."},
        {"type": "local_shell_call", "call_id": "c4", "status": "completed", "action": {"command": ["pwd"]}},
        {"type": "function_call_output", "call_id": "c4", "output": "/home"},
        {"type": "tool_search_call", "call_id": "c5", "execution": "client", "arguments": {"query": "disk"}},
        {"type": "tool_search_output", "call_id": "c5", "execution": "client", "tools": [SERVER]},
        {"type": "compaction", "encrypted_content": "opaque"},
        {**said("assistant", "Hello."), "id": None, "phase": "final_answer"},
        said("user", "Once more."),
    ],
}

READ: dict[str, Any] = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    "eager_input_streaming": True,
    "defer_loading": False,
    "cache_control": {"type": "ephemeral"},
}
PICTURE: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0"}}
CLAUDE_CODE: dict[str, Any] = {
    "model": "llama",
    "max_tokens": 100,
    "stream": True,
    "system": [{"type": "text", "text": "You write programs.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "metadata": {"user_id": "user_1"},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "medium"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "tools": [
        READ,
        {"type": "custom", **READ, "name": "Write"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is in a.png?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I look.", "signature": ""},
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "png"}},
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
                {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a.png"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [PICTURE]}]},
    ],
}
