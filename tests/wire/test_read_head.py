"""The gateway splits heads after llhttp has checked them: both must see the same headers."""

from __future__ import annotations

import random

import httptools
import pytest

from gateway.policy.sections.values import UNFIT_HEADERS
from gateway.wire.http.headers import LISTS, TRACING, WANTED, Beginning, read_head, wanted

HEADS = 20_000
NAMES_READ = wanted(())
# These headers may occur twice.
FREE = LISTS | TRACING
NAMES = [*sorted(WANTED), b"x", b"cookie"]
PIECES = (
    *(b"a", b" ", b"\t", b":", b",", b'"', b"5", b"chunked", b"\xff", b"\x85", b"\xa0"),
    *(b"\r", b"\n", b"\r\n ", b"\x00", b"\x0b", b"\x0c", b"\x1f", b"\x7f"),
)


class Heard:
    """The fields of a head that llhttp reports."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete = True


def heard(raw: bytes) -> Heard | None:
    """None if llhttp refuses it."""
    heard = Heard()
    try:
        httptools.HttpRequestParser(heard).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError:
        return None
    return heard if heard.complete else None


def made(dice: random.Random) -> bytes:
    """A head, good or nearly so."""

    def end() -> bytes:
        return b"\r\n" if dice.random() < 0.98 else dice.choice([b"\n", b"\r", b"\r\r\n", b"\n\r\n"])

    lines = []
    for _ in range(dice.randint(1, 5)):
        name = dice.choice(NAMES)
        name = name.title() if dice.random() < 0.3 else name
        if dice.random() < 0.1:
            name = dice.choice([name + dice.choice(PIECES), dice.choice(PIECES) + name])
        value = b"".join(dice.choice(PIECES[:11] if dice.random() < 0.9 else PIECES) for _ in range(dice.randint(0, 4)))
        if name.lower().strip() == b"content-length":
            value = dice.choice([b"5", b" 5", b"5 ", b"5\t", b"\t5", b"05"])
        lines.append(name + b":" + value + end())
    return b"GET / HTTP/1.1" + end() + b"".join(lines) + end() + dice.choice([b"", b"abcde", b"0\r\n\r\n"])


def test_head_reader_finds_the_same_headers_as_the_parser() -> None:
    dice = random.Random(1)
    accepted = 0
    for _ in range(HEADS):
        raw = made(dice)
        told = heard(raw)
        if told is None:
            continue
        accepted += 1
        expected: dict[bytes, bytes] = {}
        repeated = set()
        for name, value in told.headers:
            if name in WANTED:
                if name in expected:
                    repeated.add(name)
                    value = expected[name] + b"," + value if name in LISTS else value
                    value = b"" if name in TRACING else value
                expected[name] = value
        head = read_head(raw)
        assert head.fields == expected, raw
        assert (head.repeated in repeated - FREE) if repeated - FREE else head.repeated is None, raw
    assert accepted > HEADS / 10


USUAL = (
    b"Host: a",
    b"host: b",
    b"Connection: close",
    b"connection: x",
    b"User-Agent: curl",
    b"X-Chat: 7",
    b"Accept: *",
)
OWN = (
    b"Authorization: Bearer secret",
    b"x-api-key: secret",
    b"Content-Length: 5",
    b"Expect: 100-continue",
    b"Origin: c",
)


def test_head_that_begins_like_the_one_before_is_read_like_any_other() -> None:
    dice = random.Random(2)
    readers = NAMES_READ, wanted(["x-chat"])
    known, begun_alike = Beginning(), 0
    for _ in range(HEADS):
        lines = [*dice.choices(USUAL, k=dice.randint(0, 2)), *dice.choices(USUAL + OWN, k=dice.randint(0, 2))]
        first = dice.choice([b"GET / HTTP/1.1", b"GET / HTTP/1.0"])
        raw = b"\r\n".join([first, *lines, b"", dice.choice([b"", b"Host: d\r\n\r\n"])])
        names = readers[dice.random() < 0.1]
        begun_alike += bool(known.raw) and known.names is names and raw.startswith(known.raw)
        head, alone = read_head(raw, names, known), read_head(raw, names)
        for name in ("fields", "http_11", "unusual", "has_origin", "repeated"):
            assert getattr(head, name) == getattr(alone, name), raw
        assert b"secret" not in known.raw
    assert begun_alike > HEADS / 20


@pytest.mark.parametrize("name", sorted(WANTED - FREE))
def test_head_reader_reports_a_header_that_may_not_be_repeated(name: bytes) -> None:
    head = read_head(b"GET / HTTP/1.1\r\n%b: a\r\nX: y\r\n%b: b\r\n\r\n" % (name, name.title()))
    assert head.repeated == name


def test_head_reader_ignores_bytes_after_the_blank_line() -> None:
    head = read_head(b"POST / HTTP/1.1\r\nHost: a\r\n\r\nx-api-key: b\r\n\r\n")
    assert head.fields == {b"host": b"a"}


def test_headers_with_a_meaning_of_their_own_cannot_name_a_session() -> None:
    assert {name.decode() for name in WANTED} - {"x-session-id"} <= UNFIT_HEADERS.keys()


@pytest.mark.parametrize(
    ("lines", "comes_back"),
    [
        (b"", False),
        (b"x-stainless-retry-count: 0\r\n", False),
        (b"X-Stainless-Retry-Count: 2\r\n", True),
        (b"x-stainless-retry-count: -1\r\n", False),
        (b"x-stainless-retry-count: soon\r\n", False),
        (b"x-stainless-retry-count: \r\n", False),
        (b"x-stainless-retry-count: 1\r\nx-stainless-retry-count: 1\r\n", False),
    ],
)
def test_request_is_a_retry_if_its_sdk_header_counts_at_least_one(lines: bytes, comes_back: bool) -> None:
    head = read_head(b"POST / HTTP/1.1\r\nhost: a\r\n" + lines + b"\r\n")
    assert (head.comes_back, head.repeated) == (comes_back, None)
