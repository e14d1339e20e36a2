"""The schema, the tool and the vectors of the checks."""

from __future__ import annotations

import pydantic


class Answer(pydantic.BaseModel):
    """The schema of an answer."""

    city: str
    people: int


PARIS = Answer(city="Paris", people=7)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
VECTORS = [[0.5, -0.5, 0.25, 1.0]] * 2
