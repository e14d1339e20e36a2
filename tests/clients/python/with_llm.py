"""The command `llm`, with the model in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from checks import CALL, CITY, FAIL, HELLO, KEY, LIMITED_KEY, MODEL, SUNNY, V1, refused_then_served, run, same

HOME = Path(os.environ["HOME"], "llm")
TOOLS = "def get_weather(city: str) -> str:\n    return f'sunny in {city}'\n"


def llm(*words: str, key: str = KEY, model: str = MODEL, status: int = 0) -> str:
    """The output of the command; the error output if it fails."""
    command = [str(Path(sys.executable).with_name("llm")), "-m", model, "--key", key, "--no-log", *words]
    environment = os.environ | {"LLM_USER_PATH": str(HOME)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    same((done.returncode, done.stderr if status == 0 else ""), (status, ""))
    return (done.stderr if status else done.stdout).strip()


def configure() -> None:
    HOME.mkdir()
    server = {"api_base": V1, "api_key_name": "tailgate", "supports_tools": True, "supports_schema": True}
    entries = [server | {"model_id": name, "model_name": name} for name in (MODEL, "no-such-model")]
    (HOME / "extra-openai-models.yaml").write_text(json.dumps(entries))


def streaming() -> None:
    same(llm("hi"), HELLO)


def failing() -> None:
    llm(FAIL, status=1)


def tools() -> None:
    same(llm("--functions", TOOLS, CALL), SUNNY)


def schemas() -> None:
    same(json.loads(llm("--schema", "city, people int", CITY)), {"city": "Paris", "people": 7})


def errors() -> None:
    for changed, status in (({"key": "wrong"}, "401"), ({"model": "no-such-model"}, "404")):
        said = llm("hi", status=1, **changed)
        assert status in said, said
    said = llm("-o", "temperature", "2", "-o", "max_tokens", "-1", "hi", status=1)
    assert "400" in said, said


def waits() -> None:
    # Called in this process: the limit would be over before a command has started.
    os.environ["LLM_USER_PATH"] = str(HOME)
    from llm import get_model

    model = get_model(MODEL)
    same(refused_then_served(lambda: model.prompt("hi", key=LIMITED_KEY).text()), HELLO)


configure()
run("llm", streaming, failing, tools, schemas, errors, waits)
