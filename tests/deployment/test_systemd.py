"""The unit starts, reloads, drains and confines the process."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.api_side import CLOSE_GRACE_S
from gateway.listener import BACKLOG
from gateway.settings import PREFIX, Settings

from .files import DEPLOY

UNIT = (DEPLOY / "systemd" / "tailgate.service").read_text()
SOCKET = (DEPLOY / "systemd" / "tailgate.socket").read_text()


def values(key: str) -> list[str]:
    """Every value of a key in the unit."""
    return re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd reads its own units")
def test_systemd_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    """/bin/true stands for the gateway, which is not installed under /opt here."""
    unit = tmp_path / "tailgate.service"
    unit.write_text(UNIT.replace("/opt/tailgate/bin/tailgate", "/bin/true"))
    port = tmp_path / "tailgate.socket"
    port.write_text(SOCKET)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit), str(port)], capture_output=True, text=True, check=False
    )
    assert "tailgate." not in verified.stderr
    unit.write_text(unit.read_text() + "\nTimeoutStopSek=1\n")
    refused = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert "TimeoutStopSek" in refused.stderr


def test_every_line_of_the_systemd_unit_is_a_section_a_setting_or_a_comment() -> None:
    sections = re.findall(r"^\[(\w+)\]$", UNIT, re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
    rest = [line for line in UNIT.splitlines() if line and not line.startswith(("#", "["))]
    assert all(re.fullmatch(r"[A-Z]\w*=\S?.*", line) for line in rest)


def test_systemd_listens_where_the_gateway_would() -> None:
    defaults = Settings.model_fields
    assert f"ListenStream={defaults['host'].default}:{defaults['port'].default}" in SOCKET
    assert f"Backlog={BACKLOG}" in SOCKET


def test_systemd_unit_checks_the_policy_before_it_serves() -> None:
    assert values("ExecStart") == ["/opt/tailgate/bin/tailgate serve --policy /etc/tailgate/policy.yaml"]
    assert values("ExecStartPre") == ["/opt/tailgate/bin/tailgate check /etc/tailgate/policy.yaml"]


def test_systemd_keeps_the_state_where_the_gateway_writes_it() -> None:
    variables = dict(value.split("=", 1) for value in values("Environment"))
    assert variables["TAILGATE_STATE_DIR"] == f"/var/lib/{values('StateDirectory')[0]}"


def test_systemd_reload_is_a_sighup_and_stop_is_a_drain() -> None:
    assert values("ExecReload") == ["/bin/kill -HUP $MAINPID"]
    assert values("KillSignal") == ["SIGTERM"]
    variables = dict(value.split("=", 1) for value in values("Environment"))
    assert {name.removeprefix(PREFIX).lower() for name in variables} <= set(Settings.model_fields)
    drain_s = float(variables["TAILGATE_DRAIN_DEADLINE_S"])
    assert float(values("TimeoutStopSec")[0]) > drain_s + CLOSE_GRACE_S


def test_admin_socket_lies_in_the_runtime_directory_of_the_systemd_unit() -> None:
    assert f"TAILGATE_ADMIN_UDS=/run/{values('RuntimeDirectory')[0]}/admin.sock" in values("Environment")


def test_the_systemd_unit_is_sandboxed() -> None:
    assert values("DynamicUser") == ["yes"]
    assert values("NoNewPrivileges") == ["yes"]
    assert values("ProtectSystem") == ["strict"]
    assert values("CapabilityBoundingSet") == [""]
    assert not any("TOKEN" in value for value in values("Environment")), "a unit file is readable by everybody"
