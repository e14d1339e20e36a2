"""The page on bad input agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.core.results import Reason
from gateway.wire.errors.reasons import ROWS
from gateway.wire.render import render
from gateway.wire.request import BadRequest, parse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "bad-input.md").read_text("utf-8")
FIELDS = re.findall(r"^\| `(\".*)` \| (.+?) \| .* ?\|$", PAGE, re.MULTILINE)
HAPPENS = re.compile(r"(\d+|dropped,|lowered,|repaired,|passed)(?: `(.+)`)?")


def test_reasons_of_refusals_have_their_status_on_the_bad_input_page() -> None:
    """The runbook lists all reasons, by tests/test_docs.py."""
    named = {(status, reason) for status, reason in re.findall(r"(\d+) `([a-z-]+)`", PAGE) if reason in set(Reason)}
    assert len(named) >= 3
    assert named == {(str(ROWS[Reason(reason)].status), reason) for _, reason in named}


@pytest.mark.parametrize(("field", "happens"), FIELDS, ids=[field[:60] for field, _ in FIELDS])
def test_field_is_treated_as_the_bad_input_page_says(field: str, happens: str) -> None:
    found = HAPPENS.fullmatch(happens)
    assert found is not None, happens
    what, name = found.groups()
    base = '"model": "m", "messages": [{"role": "user", "content": "hi"}]'
    body = f"{{{base}, {field}}}".encode()
    if what.isdigit():
        with pytest.raises(BadRequest) as caught:
            parse(Endpoint.CHAT, body, Caps())
        assert ROWS[caught.value.why].status == int(what)
        assert (caught.value.field or "").startswith(name or "")
        assert bool(name) == bool(caught.value.field)
        return
    request = parse(Endpoint.CHAT, body, Caps())
    assert request.changed == ((name,) if name else ())
    sent = orjson.loads(render(request, "m", 100))
    if what == "dropped,":
        assert name.partition(".")[0] not in sent
    elif what == "passed":
        told = orjson.loads(body)
        assert all(sent.get(key) == value for key, value in told.items())


def test_bad_input_page_lists_fields() -> None:
    assert len(FIELDS) > 15
