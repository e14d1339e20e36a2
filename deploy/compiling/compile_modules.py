"""Python to C to shared libraries: `python compile_modules.py FOLDER FILE...`, with the package in the current folder.

A program of its own: mypy wants a process to itself, and its memory back. Needs mypy and setuptools.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FLAGS = ["-fvisibility=hidden", "-fno-plt"]
"""Nobody calls into the library by name, so it may call its own functions straight."""
GCC_FLAGS = [
    "-freorder-blocks-and-partition",
    "-Wno-misleading-indentation",
    "--param=ggc-min-expand=1000",
    "--param=ggc-min-heapsize=1500000",
]
"""Cold code stands apart. Python's own flags have -Wall: for its look at indentation gcc reads C as large as this again
and again, which takes four fifths of the time. And kB that it may take before it collects garbage, which takes a third
of the rest."""
LIBRARY = "tailgate"
INNER = ("gateway/core/", "gateway/sim/")
"""One library, the rest another: two cores compile at once, and few calls go from one into the other."""
TOP_LEVEL = re.compile(r"^(char CPyDef_\w+_____top_level__\(void\) \{)", re.MULTILINE)
ONCE = """#ifdef __clang__
#define RUN_ONCE __attribute__((optnone, noinline))
#else
#define RUN_ONCE __attribute__((optimize("O0"), noinline, cold))
#endif
"""
INTERNAL = re.compile(r'^#include "__native', re.MULTILINE)
COLD = "".join(
    f"__typeof__({name}) {name} __attribute__((cold));\n"
    for name in ("CPy_AddTraceback", "CPy_AttributeError", "CPy_TypeError", "CPy_TypeErrorTraceback")
)
"""What leads to these is a quarter of the code, and is needed only when something raises."""
SHIM_FLAGS = ["-O1", "-g0"]
MAX_ENTRIES = 16
"""Entry points of one library take 1 kB each, and a library 15 kB."""


def compile_modules(target: Path, files: list[str]) -> None:
    """Writes `target`/gateway/.../*.so and the library that they share. Exits with mypy's errors if there are any."""
    gc.disable()  # what mypy builds is kept until the end
    from mypyc.build import mypycify
    from setuptools._distutils import ccompiler, sysconfig

    work = target / "c"
    inner = [name for name in files if name.startswith(INNER)]
    outer = [name for name in files if not name.startswith(INNER)]
    groups: list[tuple[list[str], str | None]] = [(inner, f"{LIBRARY}_inner"), (outer, f"{LIBRARY}_outer")]
    # As pyproject.toml has it for some; and a package without types is no reason to run interpreted.
    paths = ["--ignore-missing-imports", *files]
    print(f"progress: translating {len(files)} modules to C")
    extensions = mypycify(paths, target_dir=str(work), separate=groups, opt_level="1", debug_level="0")
    gc.enable()
    compiler: Any = ccompiler.new_compiler()
    sysconfig.customize_compiler(compiler)
    said = subprocess.run([*compiler.compiler[:1], "--version"], capture_output=True, text=True).stdout
    gcc = "Free Software Foundation" in said
    include = [*sysconfig_paths(sysconfig), *(folder for extension in extensions for folder in extension.include_dirs)]
    shims = {extension.name: Path(extension.sources[0]) for extension in extensions if "__mypyc" not in extension.name}
    libraries = [extension for extension in extensions if "__mypyc" in extension.name]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")

    def build(name: str, source: str, flags: list[str]) -> Path:
        print(f"progress: compiling {Path(source).name} ({Path(source).stat().st_size / 1e6:.1f} MB of C)")
        objects = compiler.compile(
            [source], output_dir=str(work / name), include_dirs=list(dict.fromkeys(include)), extra_postargs=flags
        )
        made = work / f"{name}{suffix}"
        compiler.link_shared_object(objects, str(made))
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = []
        for library in libraries:
            _lighten(Path(library.sources[0]))
            flags = [*library.extra_compile_args, *FLAGS, *(GCC_FLAGS if gcc else [])]
            made.append(pool.submit(build, library.name, library.sources[0], flags))
        for number, names in enumerate(_buckets(shims)):
            source = work / f"shims_{number}.c"
            source.write_text(_joined(shims[name] for name in names))
            shim = build(source.stem, str(source), [*SHIM_FLAGS, *FLAGS])
            for name in names:
                place = target.joinpath(*name.split("."))
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(shim, f"{place}{suffix}")
        print("progress: waiting for the two libraries, which take the longest")
        for future in made:
            shutil.copy(future.result(), target)
    shutil.rmtree(work)


def _lighten(source: Path) -> None:
    """The C without its indentation, most of its bytes; and optimised for neither imports nor exceptions."""
    text = re.sub(r"^[ \t]+", "", source.read_text(), flags=re.MULTILINE)
    text = INTERNAL.sub(lambda found: COLD + found[0], text, count=1)
    source.write_text(ONCE + TOP_LEVEL.sub(r"RUN_ONCE \1", text))


def sysconfig_paths(sysconfig: Any) -> list[str]:
    return [sysconfig.get_python_inc(), sysconfig.get_python_inc(plat_specific=True)]


def _buckets(names: Iterable[str]) -> list[list[str]]:
    """Modules whose last names differ, so that their entry points can share a library. Each module has a copy of it."""
    buckets: dict[tuple[int, int], list[str]] = defaultdict(list)
    seen: dict[str, int] = defaultdict(int)
    for number, name in enumerate(sorted(names)):
        last = name.rpartition(".")[2]
        buckets[seen[last], number // MAX_ENTRIES].append(name)
        seen[last] += 1
    return list(buckets.values())


def _joined(sources: Iterable[Path]) -> str:
    """mypyc writes an entry point for every module; to compile each alone takes ten times as long."""
    parts = []
    for number, source in enumerate(sources):
        # The one name that all of them define.
        parts.append(f'#define PyInit___init__ PyInit___init___{number}\n#include "{source.resolve()}"\n')
        parts.append("#undef PyInit___init__\n")
    return "".join(parts)


if __name__ == "__main__":
    compile_modules(Path(sys.argv[1]).resolve(), sys.argv[2:])
