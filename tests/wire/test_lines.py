"""Header lines: found by name, trimmed, read as numbers; and the form of our own."""

import pytest

from gateway.wire.http.lines import Names, can_be_token, milliseconds, number, trimmed
from gateway.wire.http.written_heads import rate_limit_lines

NAMES = Names((b"host", b"content-length", b"content-type"))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"host: a", b"host"),
        (b"Host:", b"host"),
        (b"hOsT:a", b"host"),
        (b"CONTENT-LENGTH: 1", b"content-length"),
        (b"content-type:a:b", b"content-type"),
        (b"hose: a", None),
        (b"host", None),
        (b"host : a", None),
        (b" host: a", None),
        (b"h:host: a", None),
        (b"\xff: a", None),
    ],
)
def test_header_that_the_gateway_reads_is_found_in_any_letter_case(line: bytes, name: bytes | None) -> None:
    assert NAMES.find(line) == name


@pytest.mark.parametrize(
    ("line", "value"), [(b"a: b", b"b"), (b"a:\t b c \t", b"b c"), (b"a:", b""), (b"a:  ", b""), (b"a:\x0b", b"\x0b")]
)
def test_blanks_around_a_header_value_are_cut(line: bytes, value: bytes) -> None:
    assert trimmed(line, 2) == value


@pytest.mark.parametrize(
    ("digits", "value"),
    [
        (b"0", 0),
        (b"0017", 17),
        (b"9" * 18, 10**18 - 1),
        (b"9" * 19, -1),
        (b"", -1),
        (b"+1", -1),
        (b"1_0", -1),
        (b"-1", -1),
    ],
)
def test_only_digits_are_read_as_a_number_of_a_header(digits: bytes, value: int) -> None:
    assert number(digits) == value


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0, "0.00"), (0.0015, "1.50"), (0.00000949, "0.01"), (1.23456789, "1234.57")]
)
def test_timing_headers_have_milliseconds_with_two_decimal_places(seconds: float, said: str) -> None:
    assert milliseconds(seconds) == said


def test_rate_limit_headers_hold_whole_numbers() -> None:
    lines = rate_limit_lines(((60.0, 59.9, 0.12), (60000.0, 0.0, 72.5)))
    assert lines.split("\r\n") == [
        "x-ratelimit-limit-requests: 60",
        "x-ratelimit-remaining-requests: 59",
        "x-ratelimit-reset-requests: 120ms",
        "x-ratelimit-limit-tokens: 60000",
        "x-ratelimit-remaining-tokens: 0",
        "x-ratelimit-reset-tokens: 1m12.5s",
        "",
    ]


@pytest.mark.parametrize(("seconds", "said"), [(0.0, "0ms"), (0.9996, "1.0s"), (12.34, "12.3s"), (59.99, "59.9s")])
def test_rate_limit_headers_say_how_long_until_a_limit_is_full_again(seconds: float, said: str) -> None:
    assert rate_limit_lines(((1.0, 1.0, seconds), None)).endswith(f"requests: {said}\r\n")


def test_rate_limit_headers_are_absent_without_a_limit() -> None:
    assert rate_limit_lines((None, None)) == ""


@pytest.mark.parametrize("token", ["", "a", "a-~_9+/=", "!" * 4096])
def test_printable_ascii_without_spaces_can_be_a_token(token: str) -> None:
    assert can_be_token(token)


@pytest.mark.parametrize("token", ["a\n", "a\r\nx: y", "a b", "\ta", "\x00", "\x7f", "ü", "\u00a0"])
def test_text_that_no_header_can_carry_cannot_be_a_token(token: str) -> None:
    assert not can_be_token(token)
