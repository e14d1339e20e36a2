"""Differences between two policies: by meaning, in the units of the file, without secrets."""

from __future__ import annotations

import pytest

from gateway.policy import load_text
from gateway.policy.outline import changes

OLD = """\
apiVersion: tailgate/v1
models: {llama: {pools: [main]}}
pools:
  main:
    replicas: [http://10.0.0.1:8000, {name: two, url: "http://10.0.0.2:8000"}]
    api_key: first-key-of-the-replicas
    slots: 64
    reserve: {gold: 10%}
tiers:
  gold: {slo: {ttft: {p99: 1s}}, limits: {tokens: 40k/min}}
  free: {}
keys:
  - {sha256: "1111111111111111111111111111111111111111111111111111111111111111", tenant: acme, tier: gold}
defaults: {tier: gold}
listen: {max_body: 16MiB}
"""


def differences(*replaced: tuple[str, str]) -> list[str]:
    new = OLD
    for before, after in replaced:
        assert before in new
        new = new.replace(before, after)
    return changes(load_text(OLD, "old.yaml", {}).outline, load_text(new, "new.yaml", {}).outline)


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("p99: 1s", "p99: 800ms", "tiers.gold.slo.ttft.p99: 1s -> 800ms"),
        ("p99: 1s", "p99: 1s, p50: 300ms", "tiers.gold.slo.ttft.p50: not set -> 300ms"),
        ("{tokens: 40k/min}", "{}", "tiers.gold.limits.tokens: 40000/min -> not set"),
        ("slots: 64", "slots: auto", "pools.main.slots: 64 -> auto"),
        ("gold: 10%", "gold: 25%", "pools.main.reserve.gold: 10% -> 25%"),
        ("16MiB", "1GiB", "listen.max_body: 16MiB -> 1GiB"),
        ("  free: {}", "  free: {floor: 5%}", "tiers.free.floor: 0% -> 5%"),
        ("  free: {}", "  free: {}\n  new: {}", "tiers.new: added"),
        ("  free: {}\n", "", "tiers.free: removed"),
        ("http://10.0.0.1:8000, ", "", "pools.main.replicas.10.0.0.1:8000: removed"),
        ('"http://10.0.0.2:8000"', '"http://10.0.0.3:8000"', None),
        ('sha256: "1', 'sha256: "2', None),
        ("tenant: acme", "tenant: globex", None),
    ],
)
def test_change_of_a_policy_is_one_line_with_the_units_of_the_file(before: str, after: str, line: str | None) -> None:
    found = differences((before, after))
    expected = {
        '"http://10.0.0.2:8000"': ["pools.main.replicas.two.url: http://10.0.0.2:8000 -> http://10.0.0.3:8000"],
        'sha256: "1': ["keys.acme/11111111: removed", "keys.acme/21111111: added"],
        "tenant: acme": ["keys.acme/11111111: removed", "keys.globex/11111111: added"],
    }
    assert found == expected.get(before, [line])


@pytest.mark.parametrize(
    "replaced",
    [
        ("p99: 1s", "p99: 1000ms"),
        ("40k/min", "40000/min"),
        ("10%", "0.1"),
        ("16MiB", "16384KiB"),
        ("  free: {}", "  free: {priority: 0}  # the default"),
        ("http://10.0.0.1:8000, ", "http://10.0.0.1:8000/, "),
    ],
)
def test_another_spelling_of_the_same_policy_is_no_change(replaced: tuple[str, str]) -> None:
    assert differences(replaced) == []


def test_changed_secret_is_told_but_not_shown() -> None:
    (line,) = differences(("first-key", "second-key"))
    assert line.startswith("pools.main.api_key: secret ")
    assert "key-of" not in line
    assert "first-key-of-the-replicas" not in repr(load_text(OLD, "old.yaml", {}).outline)
