"""What a release consists of: changelog, version, SBOM, and the workflows that build it."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from deploy.release import __main__ as release
from deploy.release.changelog import NotReleasable, bumped, chart_bumped, released

from .files import DEPLOY, ROOT, read_yaml

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHANGES = "# Changes\n\n## Unreleased\n\n- A thing.\n\n## 0.1.0\n\n- The first.\n"


def test_release_moves_the_unreleased_changes_under_its_version() -> None:
    assert released(CHANGES, "0.2.0") == CHANGES.replace("Unreleased", "0.2.0")


@pytest.mark.parametrize(
    ("changes", "version", "told"),
    [
        (CHANGES, "two", "VERSION=two is no version such as 1.2.3"),
        (CHANGES, "0.1.0", "has 0.1.0 already"),
        (CHANGES.replace("- A thing.\n", ""), "0.2.0", "has nothing under ## Unreleased"),
    ],
)
def test_release_is_refused_without_a_new_version_or_changes(changes: str, version: str, told: str) -> None:
    with pytest.raises(NotReleasable, match=told):
        released(changes, version)


def test_release_writes_its_version_into_the_project_and_nothing_else() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    changed = bumped(project, "9.8.7")
    assert [(a, b) for a, b in zip(project.splitlines(), changed.splitlines(), strict=True) if a != b] == [
        (re.findall(r"(?m)^version = .*$", project)[0], 'version = "9.8.7"')
    ]


def test_chart_has_the_version_of_the_release_and_of_the_project() -> None:
    about = (release.CHART / "Chart.yaml").read_text()
    changed = yaml.safe_load(chart_bumped(about, "9.8.7"))
    assert changed == yaml.safe_load(about) | {"version": "9.8.7", "appVersion": "9.8.7"}
    assert chart_bumped(about, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]) == about


def test_archive_of_the_chart_is_one_that_helm_renders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed: the chart is not rendered")
    monkeypatch.setattr(release, "DIST", tmp_path)
    release.chart()
    (archive,) = tmp_path.glob("tailgate-*.tgz")
    with helm.Chart.load(str(archive)) as chart:
        assert dict(chart.render(read_yaml(DEPLOY / "helm" / "example-values.yaml"), name="gate", namespace="prod"))


def test_sbom_lists_exactly_the_locked_packages_with_their_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "DIST", tmp_path)
    release.sbom()
    (written,) = tmp_path.glob("*.cdx.json")
    bill = json.loads(written.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "tailgate"
    locked = dict(re.findall(r"(?m)^(\S+)==(\S+)", (ROOT / "requirements.lock").read_text()))
    assert {part["name"]: part["version"] for part in bill["components"]} == locked
    assert all('"alg": "SHA-256"' in json.dumps(part) for part in bill["components"])


def builders(folder: Path, **programs: str) -> str:
    """A PATH of programs that are these shell scripts."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_image_is_built_by_the_first_program_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dist").mkdir()
    monkeypatch.setattr(release, "DIST", tmp_path / "dist")
    monkeypatch.setenv("PATH", builders(tmp_path, docker="exit 1"))
    release.image()
    assert "no image: none of docker, podman, buildah works here" in capsys.readouterr().out
    save = 'if [ "$1" = save ]; then echo "$4" > "$3"; fi'
    monkeypatch.setenv("PATH", builders(tmp_path, podman=save))
    release.image()
    (packed,) = (tmp_path / "dist").iterdir()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert packed.name == f"tailgate-{version}-image.tar.gz"
    assert gzip.decompress(packed.read_bytes()).decode() == f"tailgate:{version}\n"
    monkeypatch.setattr(release, "IMAGE_BYTES", 10)
    with pytest.raises(NotReleasable, match="more than 10"):
        release.image()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_fits_the_schema_of_github(path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_have_files_for_every_command_and_bounds_for_every_job() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            assert job["timeout-minutes"]
            commands = "\n".join(step.get("run", "") for step in job["steps"])
            assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= targets


def test_upload_leaves_out_the_wheel_for_this_machine_alone() -> None:
    # PyPI refuses linux_x86_64; cibuildwheel makes manylinux and musllinux wheels of the same code.
    (command,) = re.findall(r"(?m)^twine upload (.+)$", (ROOT / "CONTRIBUTING.md").read_text())
    made = ["tailgate-1.0-py3-none-any.whl", "tailgate-1.0-cp313-cp313-linux_x86_64.whl", "tailgate-1.0.tar.gz"]
    uploaded = [name for name in made for pattern in command.split() if Path("dist", name).match(pattern)]
    assert uploaded == ["tailgate-1.0-py3-none-any.whl", "tailgate-1.0.tar.gz"]


def test_workflow_tests_every_python_that_the_project_names() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r"Python :: (3\.\d+)", project)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == named
    (built,) = re.findall(r'(?m)^build = "(cp.*)"$', project)
    assert built.split() == [f"cp{python.replace('.', '')}-*" for python in named]
