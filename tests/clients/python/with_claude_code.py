"""Claude Code, as `claude -p`. It always streams, over messages."""

from __future__ import annotations

import json

from checks import FAIL, HELLO, KEY, SLOW_KEY, calling, refused_then_served, same
from commands import MADE, NO_PICTURE, PARIS, SCHEMA, WORK, agent, configuration, path_of, picture, run

QUIET = dict.fromkeys(
    (
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        "DISABLE_TELEMETRY",
        "DISABLE_AUTOUPDATER",
        "DISABLE_ERROR_REPORTING",
    ),
    "1",
)


def claude(*words: str, key: str = KEY, status: int = 0) -> str:
    typed = configuration("ANTHROPIC_BASE_URL") + 'exec "$@"'
    command = ("sh", "-c", typed, "sh", path_of("claude"), "-p")
    return agent(*command, *words, status=status, TAILGATE_KEY=key, **QUIET)


def streaming() -> None:
    same(claude("Say hello"), HELLO)


def failing() -> None:
    same(claude(FAIL), HELLO)  # it retries without a stream


def tools() -> None:
    call = calling("Bash", command=MADE, description="Make a file")
    same(claude(call, "--allowedTools", "Bash"), "The tool said: made")
    same((WORK / "made.txt").read_text(), "made\n")
    same(claude("--continue", "And again"), HELLO)
    said = claude(calling("Read", file_path=picture()), "--allowedTools", "Read")
    same(said, NO_PICTURE)


def schemas() -> None:
    call = calling("StructuredOutput", **PARIS)  # the agent's own tool for them
    said = json.loads(claude("--output-format", "json", "--json-schema", json.dumps(SCHEMA), call))
    same(said["structured_output"], PARIS)


def errors() -> None:
    for words, key, status in (((), "wrong", "401"), (("--model", "no-such-model"), KEY, "no-such-model")):
        said = claude("hi", *words, key=key, status=1)
        assert status in said, said


def waits() -> None:
    same(refused_then_served(lambda: claude("hi", key=SLOW_KEY), SLOW_KEY), HELLO)


run("@anthropic-ai/claude-code", streaming, failing, tools, schemas, errors, waits)
