"""A gateway in a process of its own, a scripted engine behind it, and programs in front of it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from .engine import MODEL

KEY = "tg-the-key-of-the-clients"
LIMITED_KEY = "tg-the-key-with-a-limit"
PROGRAM_S = 240
FOLDER = Path(__file__).parent


def policy(replica: str) -> str:
    """One model and one replica; one tenant has a limit of requests, of which one a second comes back."""
    keys = [
        f"  - {{sha256: {hashlib.sha256(key.encode()).hexdigest()}, tenant: {tenant}, tier: {tier}}}\n"
        for key, tenant, tier in ((KEY, "acme", "standard"), (LIMITED_KEY, "small", "limited"))
    ]
    return f"""\
apiVersion: tailgate/v1
models: {{{MODEL}: {{pools: [main]}}}}
pools: {{main: {{replicas: ["{replica}"], slots: 16}}}}
tiers:
  standard: {{max_tokens: {{limit: 64000}}}}
  limited: {{max_tokens: {{limit: 64000}}, limits: {{requests: 60/min}}}}
defaults: {{tier: standard}}
keys:
{"".join(keys)}"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program has printed: the version of its package, and of each check what went wrong, None if nothing."""

    version: str = ""
    checks: dict[str, str | None] = field(default_factory=dict)
    written: str = ""


def outside() -> dict[str, str]:
    """The environment of a program: no proxy, nothing of this project, no telemetry."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
    return kept | {"NO_PROXY": "*", "DO_NOT_TRACK": "1", "PYTHONSAFEPATH": ""}


def run(command: list[str], home: Path, url: str, admin_url: str) -> Outcome:
    """Run a program in front of the gateway at `url`; `home` is its home."""
    given = {"URL": url, "ADMIN": admin_url, "MODEL": MODEL, "KEY": KEY, "LIMITED_KEY": LIMITED_KEY}
    environment = outside() | {f"CLIENTS_{name}": value for name, value in given.items()} | {"HOME": str(home)}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=PROGRAM_S)
    outcome, version = {}, ""
    for line in done.stdout.splitlines():
        if line.startswith('{"'):
            said = json.loads(line)
            version = said.get("version", version)
            if "check" in said:
                outcome[said["check"]] = said["error"]
    return Outcome(version, outcome, done.stdout + done.stderr)
