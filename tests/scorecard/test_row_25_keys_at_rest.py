"""Row 25: keys are stored only as whole hashes, and compared in constant time."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from gateway.policy import PolicyErrors, load_text
from gateway.policy.keys import hash_of
from tests.interpreted import interpreted

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules, sha256
from .raw import chat, request

KEY = "tg-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789-_AbCdE"


def test_a_policy_holds_only_hashes_of_its_keys() -> None:
    good = rules("http://127.0.0.1:1", keys={KEY: "acme"})
    assert KEY not in good
    policy = load_text(good, "policy.yaml", {})
    assert list(policy.keys) == [hash_of(KEY)]
    assert KEY not in repr(policy)
    assert sha256(KEY) not in repr(policy)
    for written in (KEY, f"'{KEY}'", sha256(KEY)[:-1], sha256(KEY) + "00", "'${KEY}'"):
        with pytest.raises(PolicyErrors) as refused:
            load_text(good.replace(sha256(KEY), written), "policy.yaml", {"KEY": KEY})
        assert KEY not in str(refused.value)
    for field in ("key", "secret", "password", "md5", "sha1"):
        with pytest.raises(PolicyErrors):
            load_text(good.replace("sha256:", f"{field}:"), "policy.yaml", {})


def test_ready_made_policies_contain_no_key() -> None:
    for file in Path(__file__).parents[2].joinpath("policies").glob("*.yaml"):
        for line in file.read_text().splitlines():
            assert "tg-" not in line, f"{file.name}: {line}"


async def test_key_is_matched_by_its_whole_hash(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url, keys={KEY: "acme", KEY + "x": "globex"}))
    client = await connect(gw.url)
    for given, status in (
        (KEY, 200),
        (KEY + "x", 200),
        (KEY[:-1], 401),
        (KEY + "y", 401),
        (KEY.lower(), 401),
        (KEY.upper(), 401),
        (sha256(KEY), 401),
        ("", 401),
        ("' OR 1=1 --", 401),
        ("*", 401),
    ):
        for line in (f"Authorization: Bearer {given}", f"x-api-key: {given}"):
            assert (await client.ask(chat(line))).status == status, line
    # If both are given, one decides, and the other is not tried.
    assert (await client.ask(chat("Authorization: Bearer nobody", f"x-api-key: {KEY}"))).status == 401
    served = {tenant.tenant: tenant for tenant in gw.controller.snapshot(0.0).tenants}
    assert set(served) == {"acme", "globex"}


async def test_every_api_path_requires_the_key(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}))
    client = await connect(gw.url)
    for path in ("/v1/models", "/v1/models/emulated"):
        assert (await client.ask(request(path))).status == 401
        assert (await client.ask(request(path, None, f"x-api-key: {KEY}"))).status == 200
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"):
        assert (await client.ask(request(path, b"{}"))).status == 401
    for path in ("/health", "/ready"):
        assert (await client.ask(request(path))).status == 200
    assert capture.calls == []


@interpreted
async def test_hashes_are_compared_in_constant_time(
    gateway: GatewayFactory, capture: Capture, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append((known, given))
        return real(known, given)

    real = hmac.compare_digest
    monkeypatch.setattr("gateway.proxy.handler._same", compare)
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}))
    client = await connect(gw.url)
    assert (await client.ask(chat(f"x-api-key: {KEY}"))).status == 200
    assert compared == [(hash_of(KEY), hash_of(KEY))]
