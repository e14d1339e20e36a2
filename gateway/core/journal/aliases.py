"""Old names in journals: classes in format 1, and fields in any format."""

from __future__ import annotations

from typing import Final

RENAMED: Final = {
    "Admission": "AdmissionSpec",
    "Ask": "Request",
    "End": "AttemptOutcome",
    "Engine": "EngineKind",
    "Finish": "AttemptResult",
    "Hedged": "HedgeResult",
    "Pool": "PoolSpec",
    "Repetition": "RepetitionSpec",
    "Why": "Reason",
}

FIELDS: Final = {
    ("Ejection", "canary_s"): "probe_s",
    ("Record", "ask"): "request",
    **{(command, "ask"): "request_id" for command in ("Dispatch", "Commit", "Cancel", "Refuse", "Cut")},
}
"""(present name of the class, old name of a field) -> present name of the field."""


def upgraded(data: object) -> object:
    """Convert plain data from format 1 to format 2. Keys of maps (names of pools, tiers, models) stay as they are."""
    if isinstance(data, list):
        return [upgraded(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) == 1:
        for name, inner in data.items():
            if name == "map" and isinstance(inner, dict):
                return {"map": {key: upgraded(item) for key, item in inner.items()}}
            return {RENAMED.get(name, name): upgraded(inner)}
    return {key: upgraded(item) for key, item in data.items()}


def upgraded_header(header: dict[str, object]) -> dict[str, object]:
    """Convert the first line of a journal from format 1 to format 2."""
    fields = header.get("fields")
    if isinstance(fields, dict):
        fields = {RENAMED.get(name, name): names for name, names in fields.items()}
    return {**header, "journal": 2, "policy": upgraded(header.get("policy")), "fields": fields}
