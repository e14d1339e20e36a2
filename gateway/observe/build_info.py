"""The version of this tailgate, and whether its request path is compiled (docs/internals/adr/0007)."""

from __future__ import annotations

from importlib.metadata import version

from gateway.core import controller

COMPILED, INTERPRETED = "compiled", "interpreted"


def is_compiled() -> bool:
    """Whether the core is compiled. The rest of the request path is compiled together with it."""
    return not controller.__file__.endswith(".py")


def kind() -> str:
    """ "compiled" or "interpreted", for bug reports. Interpreted code takes twice the CPU time."""
    return COMPILED if is_compiled() else INTERPRETED


def release() -> str:
    """The version, without the kind of build."""
    return version("tailgate")
