"""A mistyped setting is reported. Variables that Kubernetes sets by itself are not."""

from __future__ import annotations

from gateway.settings import strangers


def test_a_mistyped_setting_is_named_with_what_was_meant() -> None:
    assert strangers({"TAILGATE_MAX_BODY_BYTE": "1", "HOME": "/", "TAILGATE_PORT": "8080"}) == [
        ("TAILGATE_MAX_BODY_BYTE", "TAILGATE_MAX_BODY_BYTES")
    ]
    assert strangers({"TAILGATE_WEATHER": "fine"}) == [("TAILGATE_WEATHER", None)]


def test_kubernetes_service_variables_are_not_reported_as_unknown() -> None:
    links = ["TAILGATE_SERVICE_HOST", "TAILGATE_SERVICE_PORT_HTTP", "TAILGATE_PORT_8080_TCP_ADDR", "TAILGATE_KEY"]
    assert strangers(dict.fromkeys(links, "x")) == []
