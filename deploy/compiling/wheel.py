"""What hatchling asks when it builds a wheel: the policies, and compiled modules where there is a C compiler."""

from __future__ import annotations

import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from deploy.compiling.build import CannotCompileError, build
from deploy.compiling.sources import obstacle, wanted


class CompiledWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the policies and the compiled modules to a wheel. A checkout compiles by deploy.compiling.checkout."""

    def dependencies(self) -> list[str]:
        """mypy, and the packages whose types it has to read: only where anything will be compiled."""
        if wanted() is False or obstacle() is not None:
            return []
        project = tomllib.loads(Path(self.root, "pyproject.toml").read_text())["project"]
        return [*project["optional-dependencies"]["build"], *project["dependencies"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, or say why not. With TAILGATE_PURE=0 a wheel that is not compiled is an error."""
        if version == "editable":
            return
        build_data["force_include"][str(Path(self.root, "policies"))] = "gateway/policies"
        if wanted() is False:
            return
        problem = obstacle()
        if problem is None:
            self._made = tempfile.TemporaryDirectory()
            try:
                build(Path(self.root), Path(self._made.name))
            except CannotCompileError as error:
                problem = str(error)
        if problem is not None:
            if wanted():
                raise RuntimeError(f"tailgate could not be compiled: {problem}")
            self.app.display_warning(f"tailgate is not compiled and takes twice the CPU: {problem}")
            return
        made = Path(self._made.name)
        for library in made.rglob("*.so"):
            build_data["force_include"][str(library)] = library.relative_to(made).as_posix()
        build_data["pure_python"], build_data["infer_tag"] = False, True
