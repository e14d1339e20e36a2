"""Runs the `tailgate` command."""

from __future__ import annotations

import sys

try:
    from gateway.cli.app import app
except KeyboardInterrupt:
    sys.exit(130)  # nothing has begun


def main() -> None:
    """The console script."""
    app(prog_name="tailgate")


if __name__ == "__main__":
    main()
