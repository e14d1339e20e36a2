"""The container file builds from locked hashes. Its image runs as nobody and cannot install anything."""

from __future__ import annotations

import re

from deploy.compiling.sources import PURE
from gateway.settings import PREFIX, Settings

from .files import DEPLOY, ROOT

LINES = [
    line
    for line in re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text()).splitlines()
    if line and not line.startswith("#")
]
FROM = [index for index, line in enumerate(LINES) if line.startswith("FROM ")]
FINAL = LINES[FROM[-1] :]


def the(instruction: str) -> str:
    """The argument of an instruction that occurs once in the final stage."""
    (found,) = [line.split(" ", 1)[1] for line in FINAL if line.startswith(f"{instruction} ")]
    return found


def test_container_base_image_has_a_version() -> None:
    (base,) = [line.removeprefix("ARG BASE=") for line in LINES if line.startswith("ARG BASE=")]
    assert re.fullmatch(r"docker\.io/library/python:3\.1\d(\.\d+)?-slim-\w+", base)
    assert {LINES[index].split(" ")[1] for index in FROM} == {"${BASE}"}


def test_container_downloads_are_locked_by_hash() -> None:
    installs = [
        command for line in LINES for command in line.split(" && ") if "pip" in command and " install " in command
    ]
    outside = [command for command in installs if "--no-index" not in command]
    assert len(outside) == 2
    for command in outside:
        assert "--require-hashes" in command
        assert "--only-binary :all:" in command, "a source distribution would run code at build time"
    (own,) = [command for command in installs if "--no-index" in command]
    assert "--no-deps" in own
    (wheel,) = [command for line in LINES for command in line.split(" && ") if " wheel " in command]
    assert {"--no-deps", "--no-build-isolation"} <= set(wheel.split())


def test_lock_files_have_a_hash_for_every_requirement() -> None:
    for lock in ("requirements.lock", "requirements-build.lock", "requirements-sim.lock", "requirements-dev.lock"):
        requirements = re.findall(r"^\S+==.*\n(.*)", (ROOT / lock).read_text(), re.MULTILINE)
        assert requirements
        assert all("--hash=sha256:" in following for following in requirements)


def test_build_requirements_of_the_wheel_have_locked_versions() -> None:
    lock = (ROOT / "requirements-build.lock").read_text()
    assert all(re.search(rf"^{name}==", lock, re.MULTILINE) for name in ("hatchling", "mypy", "setuptools"))


def test_container_build_fails_if_the_code_cannot_be_compiled() -> None:
    (wheel,) = [line for line in LINES if " wheel " in line]
    assert f"RUN {PURE}=0 " in wheel


def test_container_final_stage_has_the_environment_and_no_installer() -> None:
    copies = [line for line in FINAL if line.startswith("COPY ")]
    assert copies == ["COPY --from=build /opt/tailgate /opt/tailgate"]
    (run,) = [line for line in FINAL if line.startswith("RUN ")]
    assert "pip uninstall" in run
    assert "ensurepip" in run
    assert "apt" not in "".join(FINAL)


def test_container_runs_as_a_numeric_user_other_than_root() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", the("USER"))


def test_image_stops_by_sigterm_and_has_a_health_check() -> None:
    assert the("STOPSIGNAL") == "SIGTERM"
    health = the("HEALTHCHECK")
    assert f"http://127.0.0.1:{Settings().admin_port}/livez" in health
    assert '"python", "-c"' in health


def test_container_ports_and_variables_are_those_of_the_settings() -> None:
    assert the("EXPOSE").split() == [str(Settings().port), str(Settings().admin_port)]
    known = {name.upper() for name in Settings.model_fields}
    used = set(re.findall(rf"{PREFIX}(\w+)=", the("ENV")))
    assert used == {"HOST", "ADMIN_HOST"}
    assert used <= known


def test_image_serves_the_mounted_policy() -> None:
    assert the("ENTRYPOINT") == '["tailgate"]'
    assert the("CMD") == '["serve", "--policy", "/etc/tailgate/policy.yaml"]'


def test_only_files_that_the_image_copies_are_sent_to_the_builder() -> None:
    ignore = (ROOT / ".dockerignore").read_text().split()
    allowed = {line[1:].rstrip("/") for line in ignore if line.startswith("!")}
    copied = {
        source for line in LINES if line.startswith("COPY ") and "--from" not in line for source in line.split()[1:-1]
    }
    assert "*" in ignore
    assert allowed == copied
    assert all((ROOT / name).exists() for name in copied)


def test_lock_files_have_the_same_versions() -> None:
    """Compilation and runtime have the same versions: the compiled code depends on their types."""
    run, build, dev = (
        dict(re.findall(r"^(\S+)==(\S+)", (ROOT / f"requirements{name}.lock").read_text(), re.MULTILINE))
        for name in ("", "-build", "-dev")
    )
    assert run.items() <= build.items() <= dev.items()
