"""A policy for engines at another speed: all its durations are scaled by one factor.

With `scale` virtual seconds per real one, an objective of 1 s is one of 1 / `scale` s. Durations of the network alone
(connecting, the timeout of a health check) are not scaled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from ruamel.yaml import YAML

from gateway.core.pool_spec import Health, Timeouts
from gateway.policy.sections.units import seconds, write_seconds

PERCENTILES = "p"
"""Prefix of the percentiles in a section of objectives; its other fields are no durations."""
TIMEOUTS = Timeouts()
HEALTH = Health()


@dataclass(frozen=True, slots=True)
class Key:
    """A client's key, with its tenant and tier."""

    text: str
    tenant: str
    tier: str


def key_of(tier: str, tenant: str) -> Key:
    """The key of a tenant; the same in every run, since it protects nothing."""
    return Key(f"tg-live-{tier}-{tenant}", tenant, tier)


def scaled(text: str, scale: float, urls: Sequence[str], keys: Sequence[Key]) -> str:
    """The policy of `text` (YAML) as JSON, with these replicas in its only pool. Raises ValueError if there are more.

    Durations with default values are written out, since they must be scaled as well.
    """
    policy: dict[str, Any] = YAML(typ="safe", pure=True).load(StringIO(text))
    if len(policy["pools"]) != 1:
        raise ValueError("only a policy of one pool is understood")
    stretch = _Stretch(1 / scale)
    for tier in policy["tiers"].values():
        for objectives in tier.get("slo", {}).values():
            stretch.all(objectives, [name for name in objectives if name.startswith(PERCENTILES)])
        tier["timeouts"] = stretch.over(
            {"queue": TIMEOUTS.queue_s, "ttft": TIMEOUTS.ttft_s, "idle": TIMEOUTS.idle_s, "total": TIMEOUTS.total_s},
            tier.get("timeouts", {}),
        )
    for pool in policy["pools"].values():
        pool["replicas"] = list(urls)
        stretch.all(pool.get("timeouts", {}), list(pool.get("timeouts", {})))
        watched = {
            "interval": HEALTH.interval_s,
            "scrape_interval": HEALTH.scrape_interval_s,
            "open": HEALTH.open_s,
        }
        health = pool.get("health", {})
        pool["health"] = {**health, **stretch.over(watched, {name: health[name] for name in watched if name in health})}
    policy["keys"] = [
        {"sha256": hashlib.sha256(key.text.encode()).hexdigest(), "tenant": key.tenant, "tier": key.tier}
        for key in keys
    ]
    return json.dumps(policy, indent=2)


@dataclass(frozen=True, slots=True)
class _Stretch:
    factor: float

    def all(self, section: dict[str, Any], names: Sequence[str]) -> None:
        for name in names:
            if section[name] != "none":
                section[name] = write_seconds(self.factor * seconds(section[name]))

    def over(self, defaults: Mapping[str, float], given: Mapping[str, Any]) -> dict[str, Any]:
        section: dict[str, Any] = {name: write_seconds(value_s) for name, value_s in defaults.items()} | dict(given)
        self.all(section, list(section))
        return section
