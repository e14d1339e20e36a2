"""Shared by the two coding agents: commands of node_modules, run in an empty folder with the configuration of the
README."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from checks import URL, perform, same

ROOT = Path(__file__).resolve().parents[3]
MODULES = Path(__file__).parents[1] / "node" / "node_modules"
HOME = Path(os.environ["HOME"])
WORK = HOME / "work"
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
README_URL = "http://127.0.0.1:8080"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
PARIS = {"city": "Paris", "people": 7}
NO_PICTURE = "The tool said: [A picture stood here. It was left out: caps.media of its tier is off.]"
A_PICTURE = "The tool said: <picture>"
SEEN = "I see a picture."
WINDOW = 65_536
PICTURE = (  # a PNG of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
MADE = "echo made > made.txt; cat made.txt"


def configuration(about: str) -> str:
    """The block of the README that contains `about`, with the address of this gateway."""
    blocks = [block for block in FENCE.findall((ROOT / "README.md").read_text("utf-8")) if about in block]
    same(len(blocks), 1)
    return blocks[0].replace(README_URL, URL)


def path_of(command: str) -> str:
    """Path of the command that npm installed."""
    return str(MODULES / ".bin" / command)


def agent(*command: str, status: int = 0, **environment: str) -> str:
    """The output of a command that must exit with `status`; if that is not 0, with its error output."""
    WORK.mkdir(exist_ok=True)
    done = subprocess.run(
        command,
        cwd=WORK,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, f"exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    return (done.stdout + done.stderr if status else done.stdout).strip()


def picture() -> str:
    """A file in the folder of the agent."""
    file = WORK / "picture.png"
    file.write_bytes(base64.b64decode(PICTURE))
    return str(file)


def run(package: str, *checks: Callable[[], None]) -> None:
    """Print the version of the package and perform the checks."""
    version = json.loads((MODULES / package / "package.json").read_text())["version"]
    print(json.dumps({"version": version}), flush=True)
    perform(*checks)
