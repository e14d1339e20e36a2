"""Restarts this process over the compiled or the interpreted gateway (docs/internals/adr/0007-compiled-wheels.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from deploy.compiling.checkout import compile_checkout
from deploy.compiling.sources import PURE, wanted
from gateway.observe.build_info import is_compiled


def as_users_have_it(module: str, arguments: Sequence[str], tell: Callable[[str], None], *, pure: bool = False) -> None:
    """Make sure that this program runs over the wanted gateway, compiled or interpreted. If it does not, start it
    again.

    Returns if this process already is the wanted one. Also returns, with a note, if nothing can be compiled here.
    """
    if pure:
        if is_compiled():
            _again(module, arguments, "1")
    elif not is_compiled() and wanted() is not False:
        problem = compile_checkout(tell)
        if problem is None:
            _again(module, arguments, "0")
        tell(f"tailgate runs interpreted here, at twice the CPU: {problem}")


def _again(module: str, arguments: Sequence[str], pure: str) -> None:
    if os.environ.get(PURE) == pure:
        raise SystemExit(f"tailgate does not follow {PURE}={pure}: is it installed twice?")
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], {**os.environ, PURE: pure})
