"""The table of clients, with the checks that each must pass. docs/guides/clients.md must show the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
NODE = FOLDER / "node"
PYTHON = FOLDER.parents[1] / ".venv-clients" / "bin" / "python"
ALL = "TAILGATE_TEST_CLIENTS"
"""Set by `make test-clients`, which has installed all of them."""

CHECKS = ("streaming", "failing", "tools", "pictures", "schemas", "embeddings", "scores", "errors", "waits")
USUAL = tuple(check for check in CHECKS if check not in ("pictures", "scores"))
COMMON = tuple(check for check in USUAL if check != "embeddings")
"""The checks that the page takes for granted."""


@dataclass(frozen=True, slots=True)
class Program:
    """One client, whose checks are in one file."""

    package: str
    """The name under which its registry has it, and its pin is found."""
    file: str
    checks: tuple[str, ...] = USUAL
    node: bool = False
    """Whether it needs node, even if its file is written in Python."""
    light: bool = False
    """Whether it is quick and small to install, so that it runs in the normal suite. A client for node runs there after
    `make node-clients`.
    """

    @property
    def name(self) -> str:
        """Name of the test."""
        return f"{'node' if self.node else 'python'}:{self.package}"

    @property
    def row(self) -> str:
        """The client's row of the table in docs/guides/clients.md."""
        client = f"`{self.package}`" + (self.package == "openai") * f" ({'node' if self.node else 'Python'})"
        special = [check for check in CHECKS if check in self.checks and check not in COMMON]
        missing = [f"no {check}" for check in COMMON if check not in self.checks]
        return f"| {client} | {self.pin} | {', '.join(special + missing)} |".replace("|  |", "| |")

    @property
    def command(self) -> list[str]:
        """The command line that runs the client."""
        if self.file.endswith(".mjs"):
            return ["node", str(NODE / self.file)]
        everyone = self.node or not os.environ.get(ALL)
        return [sys.executable if everyone else str(PYTHON), str(FOLDER / "python" / self.file)]

    @property
    def installed(self) -> bool:
        """Whether it can run here. The small Python clients are among every developer's requirements."""
        if self.node and not (shutil.which("node") and (NODE / "node_modules" / self.package).is_dir()):
            return False
        return self.light or bool(os.environ.get(ALL))

    @property
    def pin(self) -> str:
        """The version that is installed by `make test-clients`."""
        if self.node:
            wanted = json.loads((NODE / "package.json").read_text())
            return (wanted["dependencies"] | wanted["optionalDependencies"])[self.package]
        lines = (FOLDER / "python" / "requirements.txt").read_text()
        found = re.search(rf"^{re.escape(self.package)}(?:\[.*\])?==(\S+)$", lines, re.MULTILINE)
        assert found, f"{self.package} has no pin"
        return found[1]


def without(*missing: str) -> tuple[str, ...]:
    """The usual checks except these, which the client does not support."""
    return tuple(check for check in USUAL if check not in missing)


NO_EMBEDDINGS = without("embeddings")
AGENT = (*NO_EMBEDDINGS, "pictures")
PROGRAMS = (
    Program("openai", "with_openai.py", light=True),
    Program("anthropic", "with_anthropic.py", NO_EMBEDDINGS, light=True),
    Program("langchain-openai", "with_langchain_openai.py"),
    Program("langchain-anthropic", "with_langchain_anthropic.py", NO_EMBEDDINGS),
    Program("llama-index-llms-openai-like", "with_llama_index.py"),
    Program("litellm", "with_litellm.py"),
    Program("instructor", "with_instructor.py", NO_EMBEDDINGS),
    Program("pydantic-ai-slim", "with_pydantic_ai.py"),
    Program("openai-agents", "with_openai_agents.py", NO_EMBEDDINGS),
    Program("llm", "with_llm.py", NO_EMBEDDINGS),
    Program("lm-eval", "with_lm_eval.py", ("scores", "errors")),
    Program("openai", "openai.mjs", node=True, light=True),
    Program("@anthropic-ai/sdk", "anthropic.mjs", NO_EMBEDDINGS, node=True, light=True),
    Program("@ai-sdk/openai", "ai_openai.mjs", node=True),
    Program("@ai-sdk/openai-compatible", "ai_compatible.mjs", node=True),
    Program("@ai-sdk/anthropic", "ai_anthropic.mjs", NO_EMBEDDINGS, node=True),
    Program("@openai/codex", "with_codex.py", AGENT, node=True),
    Program("@anthropic-ai/claude-code", "with_claude_code.py", AGENT, node=True),
)
