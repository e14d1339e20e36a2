"""Writes the JSON Schema with which editors complete policy files.

python -m gateway.policy.json_schema > policies/tailgate.schema.json
"""

from __future__ import annotations

import json

from gateway.policy.schema import PolicyFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> str:
    """The schema as text, made from the same models that check policy files."""
    return json.dumps({"$schema": DIALECT, **PolicyFile.model_json_schema()}, indent=2, allow_nan=False) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")
