"""Every server's scripts, each server a file."""

from __future__ import annotations

from typing import Final

from tests.foreign.script import Script
from tests.foreign.servers import (
    ending,
    failing,
    gateways,
    hosted,
    http,
    llama_cpp,
    lmstudio,
    messages,
    mlx,
    ollama,
    responses,
    sglang,
    smaller,
    sse,
    tgi,
    trtllm,
    values,
    vllm,
)

SERVERS: Final[dict[str, tuple[Script, ...]]] = {
    "vllm": vllm.SCRIPTS,
    "sglang": sglang.SCRIPTS,
    "tgi": tgi.SCRIPTS,
    "llama.cpp": llama_cpp.SCRIPTS,
    "ollama": ollama.SCRIPTS,
    "lm studio": lmstudio.SCRIPTS,
    "mlx": mlx.SCRIPTS,
    "trtllm and triton": trtllm.SCRIPTS,
    "litellm and other proxies": gateways.SCRIPTS,
    "hosted": hosted.SCRIPTS,
    "smaller engines": smaller.SCRIPTS,
    "responses": responses.SCRIPTS,
    "messages": messages.SCRIPTS,
    "any stream": sse.SCRIPTS,
    "any json": values.SCRIPTS,
    "any http": http.SCRIPTS,
    "any ending": ending.SCRIPTS,
    "any failure": failing.SCRIPTS,
}

FLEET: Final[dict[str, Script]] = {
    f"{server}: {script.name}": script for server, scripts in SERVERS.items() for script in scripts
}
"""All of them by name."""
