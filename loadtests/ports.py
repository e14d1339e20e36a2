"""The ports of `tailgate demo`, and whether they are free. make asks with any python3, before it installs or compiles.

So this file needs the standard library only, and no syntax that is newer than Python 3.8.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = ROOT / "gateway" / "policies"
"""Where a wheel has the policies of a checkout."""
POLICY = (INSTALLED if INSTALLED.exists() else ROOT / "policies") / "default.yaml"
HOST = "127.0.0.1"
PORT, ADMIN_PORT = 8080, 9090
MAX = 65535


def port_number(text: str) -> int:
    """Parse the port of an option; 0 is any free one."""
    if not text.isdecimal() or int(text) > MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a port: give a number up to {MAX}, 0 for any free one")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line of `make run`, which is that of `tailgate demo`."""
    parser = argparse.ArgumentParser(
        prog="tailgate demo",
        description="Start the replicas of policies/default.yaml, emulated, and the gateway in front of them; "
        "send one request through it, and serve until Ctrl-C.",
    )
    add = parser.add_argument
    add("--port", type=port_number, help=f"port of the API ({PORT})")
    add("--admin-port", type=port_number, help=f"port of metrics, state and console ({ADMIN_PORT})")
    add("--free-ports", action="store_true", help="take free ports, for the replicas too: the policy is then a copy")
    add("--overload", action="store_true", help="then overload it for two minutes, and open the report")
    return parser


def gateway_ports(port: int | None, admin_port: int | None, free: bool) -> tuple[int, int]:
    """Ports of the API and of the admin pages. 0 is any free one."""
    return (
        (0 if free else PORT) if port is None else port,
        (0 if free else ADMIN_PORT) if admin_port is None else admin_port,
    )


def replica_ports(policy: str) -> list[int]:
    """The ports of all replicas in the text of a policy."""
    return [int(port) for port in dict.fromkeys(re.findall(r"http://127\.0\.0\.1:(\d+)", policy))]


def taken(port: int, admin_port: int, replicas: list[int]) -> str:
    """A text with each port that is taken, or asked for twice, and what to do; empty if there is none."""
    wanted = [(port, "the API (--port)"), (admin_port, "the admin pages (--admin-port)")]
    wanted += [(number, f"a replica ({POLICY.parent.name}/{POLICY.name})") for number in replicas]
    problems: list[str] = []
    see: list[str] = []
    first: dict[int, str] = {}
    for number, what in wanted:
        other = first.setdefault(number, what) if number else what
        if other != what:
            problems.append(f"port {number}, for {what}: it is also for {other}")
        elif problem := _problem(number):
            problems.append(f"port {number}, for {what}: {problem}")
            see = see or [f"See which process has it: lsof -nP -iTCP:{number} -sTCP:LISTEN"]
    if not problems:
        return ""
    make = "" if INSTALLED.exists() else " (make run ARGS=--free-ports)"
    avoid = f"Or take free ports for all: --free-ports{make}. One by its option: --port 18080"
    return "\n".join([*problems, *see, avoid])


def _problem(port: int) -> str:
    """Why nothing can listen on `port`; empty if it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def main() -> None:
    """Check the ports that the demo would take with these options. Exits with 1 if not all of them can be."""
    options = parser().parse_args()
    replicas = [] if options.free_ports else replica_ports(POLICY.read_text("utf-8"))
    gateway = gateway_ports(options.port, options.admin_port, options.free_ports)
    sys.exit(taken(*gateway, replicas) or 0)


if __name__ == "__main__":
    main()
