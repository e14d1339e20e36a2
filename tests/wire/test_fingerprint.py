"""Fingerprints recognise a repeated request."""

from __future__ import annotations

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.fingerprint import fingerprint
from gateway.wire.render import render
from gateway.wire.request import BadRequest, parse

PLAIN = b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "seed": 1}'


def of(body: bytes, endpoint: Endpoint = Endpoint.CHAT) -> int:
    return fingerprint(parse(endpoint, body, Caps()))


def test_fingerprint_is_the_same_in_every_process() -> None:
    assert of(PLAIN) == 0x622EF589BA9B8136  # a journal written by one process is read by another


def test_fingerprint_ignores_the_order_of_fields() -> None:
    other = b'{"seed":1,"max_tokens":5,"messages":[{"content":"Hi","role":"user"}],"model":"m"}'
    assert of(other) == of(PLAIN)
    streamed = (
        PLAIN[:-1] + b', "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}}'
    )
    assert of(streamed) == of(PLAIN)


def test_fingerprint_differs_for_a_different_request() -> None:
    others = [
        PLAIN.replace(a, b) for a, b in ((b'"m"', b'"n"'), (b"Hi", b"Ho"), (b": 5", b": 6"), (b"seed", b"min_tokens"))
    ]
    assert len({of(body) for body in (PLAIN, *others)}) == 5


def test_most_deeply_nested_request_has_a_fingerprint() -> None:
    depths = range(240, 260)
    bodies = [PLAIN[:-1] + b', "metadata": ' + b"[" * depth + b"]" * depth + b"}" for depth in depths]
    served = []
    for body in bodies:
        try:
            served.append(parse(Endpoint.CHAT, body, Caps()))
        except BadRequest:
            continue
    assert 0 < len(served) < len(depths)
    assert len({fingerprint(parsed) for parsed in served}) == len(served)


def test_rendering_a_request_does_not_change_its_fingerprint() -> None:
    parsed = parse(Endpoint.CHAT, PLAIN[:-1] + b', "min_tokens": 4}', Caps())
    before = fingerprint(parsed)
    render(parsed, "other", 3)
    assert fingerprint(parsed) == before
