"""The story of a request: its lines for `tailgate why` and the console."""

from __future__ import annotations

import pytest

from gateway.observe.requests.document import document_of
from gateway.observe.requests.row import RequestRow
from gateway.observe.requests.story import story
from tests.observe.made import REFUSED
from tests.observe.requests.test_ring import ended


@pytest.mark.parametrize(
    ("breach", "binds", "says"),
    [
        (0.07, "TTFT p99", "P(breach) 0.07 would be admitted (limit 0.50); the judge of TTFT p99 refuses"),
        (0.7, "TTFT p99", "P(breach) 0.70 does not decide yet; the judge of TTFT p99 refuses"),
        (0.7, None, "P(breach) 0.70, at most 0.50 is admitted"),
    ],
    ids=["judge", "judge of a cold pool", "P(breach)"],
)
def test_decision_line_names_the_refuser(breach: float, binds: str | None, says: str) -> None:
    document = document_of(RequestRow(ended("a", REFUSED)), 0.0)
    document["decision"] = {
        "rule": "predicted-breach",
        "mode": "enforce",
        "binds": binds,
        "breach": breach,
        "threshold": 0.5,
        "forecast": None,
        "runner_up": None,
    }
    assert dict(story(document))["decision"] == f"predicted-breach: an objective would be missed; {says}"
