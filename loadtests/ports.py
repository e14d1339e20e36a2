"""The ports of `make run`, and whether they are free. make asks with any python3, before it installs or compiles.

So this file needs the standard library only, and no syntax that is newer than Python 3.8.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
from pathlib import Path

POLICY = Path(__file__).resolve().parent.parent / "policies" / "default.yaml"
HOST = "127.0.0.1"
PORT, ADMIN_PORT = 8080, 9090
MAX = 65535


def port_number(text: str) -> int:
    """Parse the port of an option; 0 is any free one."""
    if not text.isdecimal() or int(text) > MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a port: give a number up to {MAX}, 0 for any free one")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line of the demo."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.demo",
        description="Start the replicas of policies/default.yaml, emulated, and the gateway in front of them; "
        "send one request through it, and serve until Ctrl-C.",
    )
    add = parser.add_argument
    add("--port", type=port_number, help=f"port of the API ({PORT})")
    add("--admin-port", type=port_number, help=f"port of metrics, state and console ({ADMIN_PORT})")
    add("--free-ports", action="store_true", help="take free ports, for the replicas too: the policy is then a copy")
    return parser


def gateway_ports(options: argparse.Namespace) -> tuple[int, int]:
    """Ports of the API and of the admin pages. 0 is any free one."""
    port, admin_port = (0, 0) if options.free_ports else (PORT, ADMIN_PORT)
    return (
        port if options.port is None else options.port,
        admin_port if options.admin_port is None else options.admin_port,
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
    avoid = "Or take free ports for all: make run ARGS=--free-ports. One by its option: make run ARGS='--port 18080'"
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
    sys.exit(taken(*gateway_ports(options), replicas) or 0)


if __name__ == "__main__":
    main()
