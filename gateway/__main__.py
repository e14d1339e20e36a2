"""Runs the `tailgate` command."""

from __future__ import annotations

from gateway.cli.app import app


def main() -> None:
    """The console script."""
    app(prog_name="tailgate")


if __name__ == "__main__":
    main()
