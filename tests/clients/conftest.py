"""One gateway for all clients."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from . import rig
from .engine import engine

LISTENING = re.compile(r"API on (\S+), admin on (\S+)")


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of its API and of its admin port."""
    file = tmp_path_factory.mktemp("gateway") / "policy.yaml"
    with engine() as replica:
        file.write_text(rig.policy(replica))
        command = [sys.executable, "-m", "gateway", "serve", "--policy", str(file), "--port", "0", "--admin-port", "0"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILGATE_")}
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        with subprocess.Popen(command, env=environment, stdout=pipe, stderr=both, text=True) as process:
            assert process.stdout is not None
            log = []
            for line in process.stdout:
                log.append(line)
                if found := LISTENING.search(line):
                    break
            else:
                raise AssertionError("".join(log))
            reading = threading.Thread(target=process.stdout.read)  # a full pipe would stop the process
            reading.start()
            yield found[1], found[2]
            process.terminate()
            reading.join()
