"""Without keys, a policy is served on loopback only, unless it allows more explicitly."""

from __future__ import annotations

import pytest

from gateway.core.policy import Policy
from gateway.policy import builtin, exposure_error, load_text

from .sample import SAMPLE

LOOPBACK = ["127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "LocalHost", "::ffff:127.0.0.1"]
ELSEWHERE = ["0.0.0.0", "::", "", "10.0.0.1", "::ffff:10.0.0.1", "gateway.example", "localhost.example", "127.0.0.1.x"]


@pytest.fixture
def without_keys() -> Policy:
    return builtin(["http://127.0.0.1:8000"])


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_policy_without_keys_may_be_served_on_loopback(without_keys: Policy, host: str) -> None:
    assert exposure_error(without_keys, host) is None


@pytest.mark.parametrize("host", ELSEWHERE)
def test_policy_without_keys_is_refused_on_other_addresses_with_the_remedies(without_keys: Policy, host: str) -> None:
    error = exposure_error(without_keys, host)
    assert error is not None
    for way_out in ("tailgate key new", "127.0.0.1", "listen: {open_on_any_address: true}"):
        assert way_out in error


@pytest.mark.parametrize("host", ELSEWHERE)
def test_a_policy_with_keys_may_be_served_on_any_address(host: str) -> None:
    assert exposure_error(load_text(SAMPLE, "p.yaml"), host) is None


@pytest.mark.parametrize("host", ELSEWHERE)
def test_a_policy_without_keys_is_served_on_any_address_only_if_it_says_so(host: str) -> None:
    without = SAMPLE[: SAMPLE.index("keys:")] + SAMPLE[SAMPLE.index("defaults:") :]
    assert exposure_error(load_text(without, "p.yaml"), host) is not None
    assert exposure_error(load_text(without + "listen: {open_on_any_address: true}\n", "p.yaml"), host) is None
