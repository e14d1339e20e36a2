"""Reads a large policy file in a process of its own, so that requests do not wait for it.

Parsing YAML takes some 5 us a byte, and its garbage is collected with the interpreter locked. So a thread is no help.
The child parses and checks, and writes plain data or errors. The parent compiles them, in some 2% of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gateway
from gateway.core.policy import Policy
from gateway.policy.compile import compiled
from gateway.policy.errors import PolicyError, PolicyErrors
from gateway.policy.load import digest_of, load, read_file, text_of
from gateway.policy.schema import PolicyFile

MIN_BYTES = 32 * 1024
"""A smaller file is parsed in this process: that takes less CPU time than Python needs to start."""
NICENESS = 5
"""The child leaves the CPU to the gateway, on a machine with few cores too."""


def load_apart(path: Path) -> Policy:
    """The policy in a file. Raises PolicyErrors. Blocks, so it is called in a thread."""
    try:
        is_small = path.stat().st_size < MIN_BYTES
    except OSError:
        is_small = True  # `load` says what is wrong
    if is_small:
        return load(path)
    root = str(Path(gateway.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gateway.policy.apart", str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        said = f"could not be read: the process that parses it ended with status {done.returncode}, see its last lines"
        raise PolicyErrors([PolicyError(str(path), 0, "", said)])
    told = json.loads(done.stdout)
    if told["errors"]:
        raise PolicyErrors([PolicyError(*error) for error in told["errors"]])
    return compiled(PolicyFile.model_validate(told["data"]), told["digest"], path.parent)


def main(path: str) -> None:
    """The child: writes the data of a policy file as JSON, or its errors."""
    os.nice(NICENESS)
    told: dict[str, object] = {"errors": []}
    try:
        text = text_of(path)
        document, _ = read_file(text, path)
        told |= {"data": document.data, "digest": digest_of(text)}
    except PolicyErrors as errors:
        told["errors"] = [[error.file, error.line, error.path, error.message] for error in errors.errors]
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
