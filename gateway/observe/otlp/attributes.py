"""Attributes of spans, points and resources."""

from __future__ import annotations

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


def attribute(name: str, value: str | bool | int | float) -> KeyValue:
    """One attribute."""
    match value:
        case bool():
            found = AnyValue(bool_value=value)
        case int():
            found = AnyValue(int_value=value)
        case float():
            found = AnyValue(double_value=value)
        case _:
            found = AnyValue(string_value=value)
    return KeyValue(key=name, value=found)
