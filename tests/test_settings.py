"""Settings of a process, from its environment."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.settings import Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TAILGATE_{name.upper()}", raising=False)


def test_gateway_without_settings_listens_on_loopback_only() -> None:
    settings = Settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert (settings.admin_host, settings.admin_port) == ("127.0.0.1", 9090)
    assert settings.admin_token is None


def test_environment_variables_set_what_no_option_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILGATE_PORT", "81")
    monkeypatch.setenv("TAILGATE_MAX_CONNECTIONS", "7")
    monkeypatch.setenv("TAILGATE_HOST", "")
    settings = Settings(port=82)
    assert (settings.port, settings.max_connections, settings.host) == (82, 7, "127.0.0.1")


@pytest.mark.parametrize(("written", "share"), [("1%", 0.01), ("0.5", 0.5), ("100%", 1.0)])
def test_share_of_traces_is_a_number_or_a_percentage(
    monkeypatch: pytest.MonkeyPatch, written: str, share: float
) -> None:
    monkeypatch.setenv("TAILGATE_TRACE_SHARE", written)
    assert Settings().trace_share == share


@pytest.mark.parametrize(
    ("written", "said"),
    [("one", "one is not a share: write a number"), ("101%", "less than or equal"), ("nan", "greater than or equal")],
)
def test_share_of_traces_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, written: str, said: str) -> None:
    monkeypatch.setenv("TAILGATE_TRACE_SHARE", written)
    with pytest.raises(ValidationError, match=said):
        Settings()


def test_the_admin_token_is_not_shown_by_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILGATE_ADMIN_TOKEN", "c4n4ry-c4n4ry-c4n4ry")
    settings = Settings()
    assert "c4n4ry" not in repr(settings)
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == "c4n4ry-c4n4ry-c4n4ry"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "65536"),
        ("PORT", "-1"),
        ("ADMIN_TOKEN", "short-c4n4ry"),
        ("LOG_LEVEL", "c4n4ry"),
        ("RECEIVE_TIMEOUT_S", "inf"),
        ("RECEIVE_TIMEOUT_S", "0"),
        ("DRAIN_DEADLINE_S", "-1"),
        ("MAX_BODY_BYTES", "0"),
        ("MAX_CONNECTIONS", "0"),
        ("SSL_CERTFILE", "/nowhere/c4n4ry.pem"),
    ],
)
def test_invalid_setting_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"TAILGATE_{name}", value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert name.lower() in str(caught.value)
    assert "c4n4ry" not in str(caught.value)


def test_a_service_link_of_kubernetes_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILGATE_PORT", "tcp://10.0.0.1:8080")
    with pytest.raises(ValidationError, match="enableServiceLinks: false"):
        Settings()


def test_settings_refuse_less_memory_for_bodies_than_one_body_may_have() -> None:
    assert Settings(max_body_bytes=2048, max_receiving_bytes=2048)
    with pytest.raises(ValidationError, match="less than max_body_bytes"):
        Settings(max_body_bytes=2048, max_receiving_bytes=2047)


def test_tls_private_key_setting_needs_a_certificate(tmp_path_factory: pytest.TempPathFactory) -> None:
    key = tmp_path_factory.mktemp("tls") / "key.pem"
    key.touch()
    with pytest.raises(ValidationError, match="without ssl_certfile"):
        Settings(ssl_keyfile=key)


@pytest.mark.parametrize(
    ("host", "admin_host"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")]
)
def test_api_and_admin_cannot_share_a_port(host: str, admin_host: str) -> None:
    with pytest.raises(ValidationError, match=r"--port .* and --admin-port .* are both 9000: give them different"):
        Settings(host=host, admin_host=admin_host, port=9000, admin_port=9000)
    Settings(host=host, admin_host=admin_host, port=0, admin_port=0)
    Settings(host="10.0.0.1", admin_host="10.0.0.2", port=9000, admin_port=9000)
