"""The `tailgate` command, with one module for each of its commands."""
