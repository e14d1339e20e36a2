"""Metrics, state, admin port, console, journal files and logs."""
