"""The forms of keys on the command line, and the key of each tenant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.sim.workload.arrivals import Arrival
from loadtests.commands.asked import keys_of, keys_of_engine
from loadtests.replay.keys import ALL, assigned, read_keys
from loadtests.replay.prompts import Prompts, Sizes
from loadtests.replay.target import Target, Writer

TIERS = ("gold", "free")


@pytest.mark.parametrize(
    ("text", "tiers", "tier", "key"),
    [
        ("sk-1", TIERS, ALL, "sk-1"),
        ("gold=sk-1", TIERS, "gold", "sk-1"),
        ("gold=sk-abc==", TIERS, "gold", "sk-abc=="),
        ("gold=sk-a=b", TIERS, "gold", "sk-a=b"),
        ("sk-abc==", TIERS, ALL, "sk-abc=="),
        ("sk-abc=", None, ALL, "sk-abc="),
        ("sk/a+b=c", TIERS, ALL, "sk/a+b=c"),
        ("any=sk-1", None, "any", "sk-1"),
    ],
)
def test_key_line_is_read_as_tier_and_key(text: str, tiers: tuple[str, ...] | None, tier: str, key: str) -> None:
    assert read_keys([("--key", text)], tiers) == {tier: (key,)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("=sk-1", "a key is written KEY, or TIER=KEY"),
        ("gold=", "a key is written KEY, or TIER=KEY"),
        ("glod=sk-1", r"no tier glod: did you mean gold\? \(tiers: free, gold\)"),
    ],
)
def test_bad_key_line_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^keys.txt:3: .*{told}"):
        read_keys([("keys.txt:3", text)], TIERS)


def test_the_keys_of_a_tier_are_spread_over_its_tenants() -> None:
    keys = read_keys([("--key", text) for text in ("free=a", "gold=g", "free=b", "free=c", "everybody")], TIERS)
    writer = Writer(Target("http://127.0.0.1:1", keys=keys), Prompts(1, Sizes()))

    def key_of(tier: str, tenant: str) -> str:
        head = writer.chat(Arrival(0.0, tier, tenant, "m", 10, 10), "hello").partition(b"\r\n\r\n")[0].decode()
        return head.partition("authorization: Bearer ")[2].partition("\r\n")[0]

    assert [key_of("free", f"free-{n}") for n in (1, 2, 3, 4, 11)] == ["a", "b", "c", "a", "b"]
    assert {key_of("gold", f"gold-{n}") for n in range(1, 9)} == {"g"}
    assert key_of("silver", "silver-1") == "everybody"


def test_tenants_without_a_number_have_a_key_as_well() -> None:
    keys = ("a", "b", "c")
    assert {assigned(keys, f"{name}-corp") for name in "abcdefghijklmnop"} == set(keys)
    assert assigned(keys, "acme") == assigned(keys, "acme")


@pytest.mark.parametrize("key", ["secret\r\nX-Evil: 1", "schlüssel-secret", "secret ", " "])
@pytest.mark.parametrize("tier", ["", "gold="])
def test_key_unfit_for_a_header_is_refused_and_not_shown(tier: str, key: str) -> None:
    with pytest.raises(ValueError, match="--key: a key is printable ASCII without spaces") as refused:
        read_keys([("--key", tier + key)], TIERS)
    assert "secret" not in str(refused.value)
    with pytest.raises(ValueError, match="--key: a key is printable ASCII without spaces"):
        keys_of_engine(key, None)


def test_a_file_of_keys_without_a_key_is_an_error(tmp_path: Path) -> None:
    (file := tmp_path / "keys").write_text("# none yet\n\n")
    for keys in (lambda: keys_of([], file, TIERS), lambda: keys_of_engine(None, file)):
        with pytest.raises(ValueError, match=r"--keys: there is no key in .*keys; write one"):
            keys()
