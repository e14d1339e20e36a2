"""Codex, as `codex exec`. It always streams, over responses."""

from __future__ import annotations

import json
import re

from checks import CITY, FAIL, HELLO, KEY, OPEN_KEY, SLOW_KEY, calling, refused_then_served, same
from commands import (
    A_PICTURE,
    HOME,
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


def codex(*words: str, key: str = KEY, status: int = 0) -> str:
    return agent(path_of("codex"), "exec", "--skip-git-repo-check", *words, status=status, TAILGATE_KEY=key)


QUIET = """check_for_update_on_startup = false
{}
[analytics]
enabled = false

[otel]
exporter = "none"
trace_exporter = "none"
metrics_exporter = "none"
"""
"""Around the lines of the README: a test sends nothing to anyone but the gateway."""


def configure() -> None:
    (HOME / ".codex").mkdir()
    (HOME / ".codex" / "config.toml").write_text(
        QUIET.format(configuration("model_provider") + f"model_context_window = {WINDOW}")
    )
    (HOME / "schema.json").write_text(json.dumps(SCHEMA))


def streaming() -> None:
    same(codex("Say hello"), HELLO)


def failing() -> None:
    codex("--config", "model_providers.tailgate.stream_max_retries=0", FAIL, status=1)


def tools() -> None:
    # Its sandbox wants namespaces, which containers often do not give; the folder is a temporary one.
    said = codex("--sandbox", "danger-full-access", calling("exec_command", cmd=MADE))
    assert re.fullmatch(r"The tool said: .*\bmade", said, re.DOTALL), said
    same((WORK / "made.txt").read_text(), "made\n")
    same(codex("resume", "--last", "And again"), HELLO)
    for key, seen in ((KEY, NO_PICTURE), (OPEN_KEY, A_PICTURE)):
        same(codex("--sandbox", "danger-full-access", calling("view_image", path=picture()), key=key), seen)


def pictures() -> None:
    same(codex("-i", picture(), "--", "What is it?", key=OPEN_KEY), SEEN)
    said = codex("-i", picture(), "--", "What is it?", status=1)
    assert "caps.media" in said, said


def schemas() -> None:
    same(json.loads(codex("--output-schema", str(HOME / "schema.json"), CITY)), PARIS)


def errors() -> None:
    unknown = ("--model", "no-such-model")
    for words, key, wanted in (((), "wrong", "401"), (unknown, KEY, "The model `no-such-model` does not exist.")):
        said = codex(*words, "hi", key=key, status=1)
        assert wanted in said, said


def waits() -> None:
    same(refused_then_served(lambda: codex("hi", key=SLOW_KEY), SLOW_KEY), HELLO)


configure()
run("@openai/codex", streaming, failing, tools, pictures, schemas, errors, waits)
