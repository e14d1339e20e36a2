"""The `tailgate` command, a module for each of its own."""
