"""The error of traces that cannot be exported."""

from __future__ import annotations


class TracesError(Exception):
    """A package is missing, or a variable has a value that cannot be used. The message names it."""
