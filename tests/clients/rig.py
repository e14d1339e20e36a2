"""A gateway in a process of its own, a scripted engine behind it, and programs in front of it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .engine import MODEL

KEY = "tg-the-key-of-the-clients"
LIMITED_KEY = "tg-the-key-with-a-limit"
SLOW_KEY = "tg-the-key-with-a-lower-limit"
OPEN_KEY = "tg-the-key-of-a-tier-with-pictures"
TENANTS = (
    (OPEN_KEY, "seer", "open"),
    (KEY, "acme", "standard"),
    (LIMITED_KEY, "small", "limited"),
    (SLOW_KEY, "smaller", "slow"),
)
PROGRAM_S = 240
FOLDER = Path(__file__).parent


def policy(replica: str) -> str:
    """One model and one replica; limits of the limited tenants refill after three seconds, or after ten."""
    keys = [
        f"  - {{sha256: {hashlib.sha256(key.encode()).hexdigest()}, tenant: {tenant}, tier: {tier}}}\n"
        for key, tenant, tier in TENANTS
    ]
    return f"""\
apiVersion: tailgate/v1
models: {{{MODEL}: {{pools: [main], aliases: [default]}}}}
pools:
  main:
    replicas: ["{replica}"]
    slots: 16
    health: {{failures: 100}}  # each program asks for some answers that fail, and no other traffic is between them
tiers:
  standard: {{max_tokens: {{limit: 64000}}}}
  limited: {{max_tokens: {{limit: 64000}}, limits: {{requests: 20/min}}}}
  open: {{max_tokens: {{limit: 64000}}, caps: {{media: true, prompt_logprobs: 1}}}}
  slow: {{max_tokens: {{limit: 64000}}, limits: {{requests: 6/min}}}}
defaults: {{tier: standard}}
keys:
{"".join(keys)}"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output of a program: the version of its package, and the error of each check, or None."""

    version: str = ""
    checks: dict[str, str | None] = field(default_factory=dict)
    written: str = ""


def outside() -> dict[str, str]:
    """The environment of a program, without proxy, telemetry, or variables of this project."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
    return kept | {"NO_PROXY": "*", "DO_NOT_TRACK": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def run(command: list[str], home: Path, url: str, admin_url: str) -> Outcome:
    """Run a program against the gateway at `url`, with the home folder `home`."""
    given = {
        "URL": url,
        "ADMIN": admin_url,
        "MODEL": MODEL,
        "KEY": KEY,
        "LIMITED_KEY": LIMITED_KEY,
        "SLOW_KEY": SLOW_KEY,
        "OPEN_KEY": OPEN_KEY,
    }
    environment = outside() | {f"CLIENTS_{name}": value for name, value in given.items()} | {"HOME": str(home)}
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=home, env=environment, start_new_session=True, **both) as process:
        late = threading.Timer(PROGRAM_S, os.killpg, (process.pid, signal.SIGKILL))  # and all processes that it started
        late.start()
        written = process.communicate()[0]
        late.cancel()
    outcome, version = {}, ""
    for line in written.splitlines():
        if line.startswith('{"'):
            said = json.loads(line)
            version = said.get("version", version)
            if "check" in said:
                outcome[said["check"]] = said["error"]
    return Outcome(version, outcome, written)
