"""`/admin/explain` answers for the model that would serve the request."""

from __future__ import annotations

import json
from dataclasses import replace

from gateway.core.policy import Model
from gateway.core.serving import arm_of
from gateway.observe.explain_request import asked
from gateway.wire.session import sticky_key

from .made import FREE, POLICY, SOURCES

ARMS = {name: Model(name, ("short",)) for name in ("v1", "v2")}
CHAT = Model("chat", ("short",), split=(("v1", 1), ("v2", 1)))
SPLIT = replace(POLICY, models={**ARMS, "chat": CHAT})


def test_explanation_for_a_tenant_uses_the_split_arm_of_its_requests() -> None:
    sources = replace(SOURCES, policy=lambda: SPLIT, find=lambda name, tier: (SPLIT.model(name), ""))
    tenants = [f"tenant {number}" for number in range(20)]
    found = {
        tenant: asked(json.dumps({"model": "chat", "tier": "free", "tenant": tenant}).encode(), sources).model.name
        for tenant in tenants
    }
    assert set(found.values()) == {"v1", "v2"}
    assert found == {tenant: arm_of(SPLIT, CHAT, FREE, sticky_key(None, tenant, "")).name for tenant in tenants}
