"""Measures the memory that an object and everything it refers to take, for tests of growth."""

from __future__ import annotations

import gc
import sys
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Final

SHARED: Final = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Enum)


def footprint(root: object) -> int:
    """Bytes of `root` and of every object that it refers to, each counted once; code and enums are left out."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        found = todo.pop()
        if id(found) in seen or isinstance(found, SHARED):
            continue
        seen[id(found)] = found
        todo += gc.get_referents(found)
    return sum(map(sys.getsizeof, seen.values()))
