"""`pip install` of the sdist in an empty environment, outside the checkout, gives a working `tailgate`.

The sdist is built from a copy of the needed files, and the wheel from the sdist; the wheel is installed into a new
venv. Its dependencies are the ones installed here, visible by a .pth file, so that nothing is downloaded.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import site
import socket
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from deploy.compiling.finder import LIBRARIES
from deploy.compiling.sources import PURE, modules
from gateway.observe.build_info import is_compiled, kind

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("gateway", "loadtests", "policies", "deploy/compiling", "pyproject.toml", "README.md", "LICENSE")
LOCAL = sys.stdlib_module_names | {"gateway", "loadtests", "deploy"}
LEFT_OUT = ("loadtests/bench/", "loadtests/experiments/", "loadtests/compiled.py")
PINNED_BY_OTHERS = {"pydantic-core"}  # pydantic wants exactly one version of it
NO_CACHES = shutil.ignore_patterns("__pycache__")


@dataclass(frozen=True, slots=True)
class Installed:
    """A venv with only tailgate in it, and a working folder outside of the checkout."""

    wheel: Path
    bin: Path
    folder: Path

    def run(self, program: str, *arguments: str) -> str:
        """The output of a program of the venv, which must succeed."""
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def environment() -> dict[str, str]:
    """The environment without variables that lead Python to the checkout, or set the gateway's settings.

    The package is compiled only if the tests run over compiled code, which the build reuses: compiling would take
    minutes.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TAILGATE_"))}
    return kept | {PURE: "0" if is_compiled() else "1"}


def quietly(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """The packages that these statements import."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def normal(requirement: str) -> str:
    """The name that a requirement begins with, as registries compare it."""
    found = re.match(r"[\w.-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("install")
    source, dist, venv, folder = (base / name for name in ("source", "dist", "venv", "elsewhere"))
    folder.mkdir()
    source.mkdir()
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=NO_CACHES)
        else:
            shutil.copy(ROOT / name, source / name)
    build = (sys.executable, "-m", "hatchling", "build", "--directory", str(dist), "--target")
    quietly(*build, "sdist", cwd=source)
    shutil.rmtree(source)
    (archive,) = dist.glob("*.tar.gz")
    shutil.unpack_archive(archive, base / "unpacked")
    (unpacked,) = (base / "unpacked").iterdir()
    quietly(*build, "wheel", cwd=unpacked)
    (wheel,) = dist.glob("*.whl")
    shutil.rmtree(unpacked)
    quietly(sys.executable, "-m", "venv", "--without-pip", str(venv), cwd=base)
    pip = (sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "--disable-pip-version-check")
    quietly(*pip, "install", "--no-deps", "--no-index", str(wheel), cwd=base)
    (packages,) = venv.glob("lib/python*/site-packages")
    # .pth files in a folder that a .pth file adds are not read, so the editable install is invisible.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return Installed(wheel, venv / "bin", folder)


def test_wheel_contains_exactly_the_packages_and_the_policies(installed: Installed) -> None:
    folders = {"gateway": "gateway", "loadtests": "loadtests", "policies": "gateway/policies"}
    there = {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, place in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    there = {name for name in there if "__pycache__" not in name and not name.startswith(LEFT_OUT)}
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    libraries = {name.partition(".")[0] + ".py" for name in names if name.endswith(".so")}
    assert libraries == ({*modules(ROOT), *(f"{name}.py" for name in LIBRARIES)} if is_compiled() else set())
    assert {name for name in names if ".dist-info/" not in name and not name.endswith(".so")} == there
    assert "gateway/observe/console/page.html" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_package_is_imported_from_where_it_was_installed(installed: Installed) -> None:
    modules = "gateway, gateway.app, gateway.cli"
    place = installed.run("python", "-c", f"import {modules}; print(gateway.__file__)")
    assert Path(place).is_relative_to(installed.bin.parent)


def test_every_import_is_of_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {normal(line) for line in project["dependencies"]} | PINNED_BY_OTHERS
    extras = project["optional-dependencies"]
    assert extras["load"] == extras["sim"]
    optional = {normal(line) for extra in ("sim", "otel", "fleet") for line in extras[extra]}
    at_import, later = set(), set()
    for path in [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "loadtests").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        # The folder of traces is itself imported only by `serve --traces`.
        is_always = path.is_relative_to(ROOT / "gateway") and not path.is_relative_to(ROOT / "gateway/observe/otlp")
        at_import |= imports(tree.body) if is_always else set()
        later |= imports(ast.walk(tree))
    distributions = {name: normal(of[0]) for name, of in packages_distributions().items()}
    third_party = [{distributions[name] for name in names - LOCAL} for names in (at_import, later)]
    assert third_party[0] <= declared
    assert third_party[1] <= declared | optional
    assert "uvloop" in third_party[0]


def test_the_installed_command_prints_its_help_and_version_and_checks_a_policy(installed: Installed) -> None:
    assert "serve" in installed.run("tailgate", "--help")
    assert re.fullmatch(rf"tailgate \d+\.\d+\.\d+ \({kind()}\)\n", installed.run("tailgate", "--version"))
    shutil.copy(ROOT / "policies" / "default.yaml", installed.folder)
    assert "ok: 1 model" in installed.run("tailgate", "check", "default.yaml")
    assert installed.run("tailgate", "policy", "default") == (ROOT / "policies" / "default.yaml").read_text()


def test_installed_demo_does_not_send_who_has_no_checkout_to_make(installed: Installed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [str(installed.bin / "tailgate"), "demo", "--free-ports", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, cwd=installed.folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert "Or take free ports for all: --free-ports." in done.stdout


def test_installed_demo_answers_a_request_and_a_load_test_of_it_reports(installed: Installed) -> None:
    command = [str(installed.bin / "tailgate"), "demo", "--free-ports"]
    with subprocess.Popen(
        command, cwd=installed.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            told = ""
            while "Serving until Ctrl-C" not in told and (line := process.stdout.readline()):
                told += line
            assert re.search(r"^  tokens +12 in, 100 out$", told, re.MULTILINE), told
            (overload,) = re.findall(r"^.*tailgate (load run .*) --workload climb$", told, re.MULTILINE)
            short = ("--workload", "prompt_tokens=9,output_tokens=5", "--rate", "20", "--duration", "1", "--allow-late")
            report = json.loads(installed.run("tailgate", *shlex.split(overload), *short, "--json"))
            assert report["totals"]["good"] == report["totals"]["offered"] > 0
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
        assert process.wait(30) == 0


def test_the_gateway_serves_with_its_console(installed: Installed) -> None:
    ports = ("--port", "0", "--admin-port", "0")
    # A port without a listener: the gateway serves, and reports that its replica cannot be reached.
    command = [str(installed.bin / "tailgate"), "serve", "--replica", "http://127.0.0.1:1", *ports]
    with subprocess.Popen(
        command, cwd=installed.folder, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            said = next(found for line in process.stderr if (found := re.search(r"admin on (http://\S+)", line)))
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(f"{said[1]}/", timeout=300) as page:
                assert b"<title>tailgate</title>" in page.read()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            process.stderr.read()
        assert process.wait(30) == 0
