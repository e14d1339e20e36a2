"""The error of an exporter that cannot begin."""

from __future__ import annotations


class OtlpError(Exception):
    """A package is missing, or a variable has a value that cannot be used. The message names it."""
