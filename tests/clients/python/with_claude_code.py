"""Claude Code, as `claude -p`. It always streams, over messages."""

from __future__ import annotations

import json

from checks import FAIL, HELLO, KEY, OPEN_KEY, SLOW_KEY, calling, refused_then_served, same
from commands import (
    A_PICTURE,
    MADE,
    NO_PICTURE,
    PARIS,
    SCHEMA,
    SEEN,
    WINDOW,
    WORK,
    agent,
    configuration,
    path_of,
    picture,
    run,
)

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
    window = {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(WINDOW)}
    return agent(*command, *words, status=status, TAILGATE_KEY=key, **window, **QUIET)


def streaming() -> None:
    same(claude("Say hello"), HELLO)


def failing() -> None:
    same(claude(FAIL), HELLO)  # it retries without a stream


def tools() -> None:
    call = calling("Bash", command=MADE, description="Make a file")
    same(claude(call, "--allowedTools", "Bash"), "The tool said: made")
    same((WORK / "made.txt").read_text(), "made\n")
    same(claude("--continue", "And again"), HELLO)
    for key, seen in ((KEY, NO_PICTURE), (OPEN_KEY, A_PICTURE)):
        same(claude(calling("Read", file_path=picture()), "--allowedTools", "Read", key=key), seen)


def pictures() -> None:
    same(claude(f"What is it? @{picture()}", key=OPEN_KEY), SEEN)


def schemas() -> None:
    call = calling("StructuredOutput", **PARIS)  # the agent's own tool for them
    said = json.loads(claude("--output-format", "json", "--json-schema", json.dumps(SCHEMA), call))
    same(said["structured_output"], PARIS)
    same({used["contextWindow"] for used in said["modelUsage"].values()}, {WINDOW})


def errors() -> None:
    for words, key, status in (((), "wrong", "401"), (("--model", "no-such-model"), KEY, "no-such-model")):
        said = claude("hi", *words, key=key, status=1)
        assert status in said, said


def waits() -> None:
    same(refused_then_served(lambda: claude("hi", key=SLOW_KEY), SLOW_KEY), HELLO)


run("@anthropic-ai/claude-code", streaming, failing, tools, pictures, schemas, errors, waits)
