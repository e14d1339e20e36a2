"""Writes the schema of the chart's values, with that of policy files inside.

python -m deploy.release.chart_schema > deploy/helm/tailgate/values.schema.json
"""

from __future__ import annotations

import json
from typing import Any

from gateway.policy.json_schema import DIALECT
from gateway.policy.schema import PolicyFile

COUNT = {"type": "integer", "minimum": 0}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXT = {"type": "string", "minLength": 1}
BOTH = {"properties": {"url": TEXT, "secretKey": TEXT}, "required": ["url", "secretKey"]}


def chart_schema() -> str:
    """The schema as text. Every field of the values is known, so a misspelt one is refused."""
    policy = PolicyFile.model_json_schema()
    shapes = policy.pop("$defs")
    values = _of(
        image=_of(repository=TEXT, tag=TEXT, pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}),
        replicas={"type": "integer", "minimum": 1},
        store={**_of(url={"type": "string"}, secretKey={"type": "string"}, port=PORT), "not": BOTH},
        discovery={"type": "boolean"},
        secret=TEXT,
        drainDeadlineSeconds=COUNT,
        drainNoticeSeconds=COUNT,
        resources={"type": "object"},
        service=_of(type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}, port=PORT),
        serviceMonitor={"type": "boolean"},
        networkPolicy=_of(
            enabled={"type": "boolean"},
            monitoringNamespace=TEXT,
            replicaLabels={"type": "object", "additionalProperties": {"type": "string"}},
            replicaPort=PORT,
        ),
        policy=policy,
        # Helm itself adds this to the values of every chart.
        **{"global": {"type": "object"}},
    )
    schema = _for_go({"$schema": DIALECT, "$defs": shapes, **values, "required": ["policy"]})
    return json.dumps(schema, indent=2, allow_nan=False) + "\n"


def _for_go(schema: Any) -> Any:
    """The schema without patterns that look ahead, which Helm cannot read. The gateway checks those values."""
    if isinstance(schema, list):
        return [_for_go(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _for_go(one)
        for name, one in schema.items()
        if not (name == "pattern" and isinstance(one, str) and "(?!" in one)
    }


def _of(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "additionalProperties": False}


if __name__ == "__main__":
    print(chart_schema(), end="")
