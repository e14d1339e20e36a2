"""The compiled files, and reasons not to compile."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from deploy.compiling import sources
from deploy.compiling.sources import ROOT


def test_the_request_path_is_compiled_and_what_msgspec_makes_is_not() -> None:
    compiled = sources.modules(ROOT)
    assert {"gateway/core/controller.py", "gateway/wire/answers/events.py", "gateway/proxy/replica/attempt.py"} <= set(
        compiled
    )
    assert "gateway/wire/answers/shapes.py" not in compiled
    assert all((ROOT / name).is_file() for name in compiled)


def test_missing_compiler_is_named_as_the_obstacle_to_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "some-cc -pipe")
    assert sources.obstacle() == "there is no C compiler (some-cc)"


def test_python_without_headers_is_an_obstacle_to_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert "Python.h" in str(sources.obstacle())


@pytest.mark.parametrize(("said", "meant"), [("1", False), ("0", True), ("", None), ("true", False)])
def test_tailgate_pure_selects_compiled_or_interpreted_code(
    said: str, meant: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sources.PURE, said)
    assert sources.wanted() is meant


@pytest.mark.parametrize(("pure", "status"), [(None, 0), ("0", 1)])
def test_install_without_a_compiler_prints_one_message_and_fails_only_with_pure_0(
    pure: str | None, status: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != sources.PURE}
    environment |= {"CC": "no-such-compiler"} | ({} if pure is None else {sources.PURE: pure})
    command = [sys.executable, "-m", "deploy.compiling"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == status
    assert done.stderr == "tailgate runs interpreted, at twice the CPU: there is no C compiler (no-such-compiler)\n"


def test_no_name_of_an_exception_has_two_types_where_it_is_compiled() -> None:
    """In compiled code a name keeps the type of the first handler, so an exception in the second handler becomes a
    TypeError.
    """
    twice = []
    for module in sources.modules(ROOT):
        for function in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                caught: dict[str, str] = {}
                for handler in ast.walk(function):
                    if isinstance(handler, ast.ExceptHandler) and handler.name and handler.type:
                        kind = ast.unparse(handler.type)
                        if caught.setdefault(handler.name, kind) != kind:
                            twice.append(f"{module}:{handler.lineno} {handler.name}")
    assert twice == []
