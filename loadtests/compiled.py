"""Whether this process has the compiled gateway, and how to get it (docs/internals/adr/0007-compiled-wheels.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from deploy.compiling.checkout import compile_checkout
from deploy.compiling.sources import PURE, wanted
from gateway.observe.build_info import is_compiled


def as_users_have_it(module: str, arguments: Sequence[str], tell: Callable[[str], None], *, pure: bool = False) -> None:
    """Have this program run over the compiled gateway, or over the interpreted one: where it does not, run it anew.

    Returns if this process is as asked for, or if nothing can be compiled here, which is told.
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
        raise SystemExit(f"tailgate is not what {PURE}={pure} says: is it installed twice?")
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], {**os.environ, PURE: pure})
