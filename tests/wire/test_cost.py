"""The price of a body: for every API, field and encoding, CPU and memory are within ten times those of a plain chat of
the same size, measured in the same run.
"""

from __future__ import annotations

import gc
import math
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Final

import orjson
import pytest

from gateway.core.policy import MAX_VALUES, Caps
from gateway.core.pool_spec import PoolSpec, SessionKey, SessionKeys
from gateway.core.request import Endpoint
from gateway.garbage import THRESHOLDS
from gateway.wire.apis.table import API_OF, APIS
from gateway.wire.fingerprint import fingerprint
from gateway.wire.http.decoding import CorruptBody, Decoding
from gateway.wire.http.headers import RequestHead
from gateway.wire.parsed import Parsed
from gateway.wire.prefix import prefix_of
from gateway.wire.render import render
from gateway.wire.request import BadRequest, parse, parse_counted, parse_in_parts
from gateway.wire.session import session_of
from tests.interpreted import interpreted

from .test_prompt import MINIMAL

SIZE: Final = 64 * 1024
MAX_RATIO: Final = 10.0
ROUNDS: Final = range(3, 30)
"""Fewest and most rounds of a comparison. More rounds do no harm: work that costs too much does so in its best one."""
TRIES: Final = 12
CAPS: Final = Caps(media=True, stored_responses=True)


def filled(begin: bytes, unit: bytes, end: bytes, between: bytes = b",") -> bytes:
    count = (SIZE - len(begin) - len(end)) // (len(unit) + len(between))
    return begin + between.join([unit] * count) + end


PLAIN: Final = filled(
    b'{"model":"m","messages":[', b'{"role":"user","content":"%b"}' % (b"How are you, and what is new? " * 2), b"]}"
)
SHAPES: Final = {
    "lists": filled(b"[", b"[]", b"]"),
    "lists in lists": filled(b"[", b"[[1]]", b"]"),
    "objects": filled(b"[", b'{"a":1}', b"]"),
    "parts": filled(b"[", b'{"type":"text","text":"a"}', b"]"),
    "messages": filled(b"[", b'{"role":"user","content":"a"}', b"]"),
    "tools": filled(b"[", b'{"type":"function","name":"a","function":{"name":"a"}}', b"]"),
    "items": filled(b"[", b'{"type":"additional_tools","tools":[{}]}', b"]"),
    "numbers": filled(b"[", b"7", b"]"),
    "floats": filled(b"[", b"1.5e3", b"]"),
    "texts": filled(b"[", b'"a"', b"]"),
    "many keys": b"{" + b",".join(b'"%x":1' % number for number in range(SIZE // 10)) + b"}",
    "escapes": filled(b'"', b"\\n", b'"', b""),
    "halves of pairs": filled(b'"', b"\\ud800", b'"', b""),
    "pairs": filled(b'"', b"\\ud83d\\ude00", b'"', b""),
    "wide": b'"\xf0\x9f\x98\x80' + b"a" * (SIZE - 6) + b'"',
    "spaces": b" " * SIZE + b"7",
}


def fields(name: str) -> list[str]:
    """A field for each rule of an API, all fields with the prompt, and one that is unknown."""
    (api,) = (api for api in APIS if api.name == name)
    first = {rule: field for field, rule in reversed(api.shape.rules.items())}
    return sorted({*first.values(), *MINIMAL[name], "tools", "metadata", "unknown"})


def body(name: str, field: str, value: bytes) -> bytes:
    bare = {"model": "m", **MINIMAL[name]}
    bare.pop(field, None)
    return orjson.dumps(bare)[:-1] + b',"%b":%b}' % (field.encode(), value)


def parsed(endpoint: Endpoint, given: bytes) -> None:
    try:
        parse(endpoint, given, CAPS).let_go()
    except BadRequest:
        return


def seconds(work: Callable[[], None]) -> float:
    begin = thread_time()
    work()
    return thread_time() - begin


@pytest.fixture(scope="module")
def as_in_the_process() -> Iterator[None]:
    """The garbage collector as `gateway.garbage` sets it."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    yield
    gc.set_threshold(*before)


def is_within(work: Callable[[], None], chats: int = 1) -> bool:
    """Whether the work takes at most `MAX_RATIO` times as long as so many plain chats.

    Both take turns, so that a busy machine slows down both, and the best of each are compared.
    """
    best_s = plain_s = math.inf
    for number in range(ROUNDS.stop):
        plain_s = min(plain_s, seconds(lambda: parsed(Endpoint.CHAT, PLAIN)))
        best_s = min(best_s, seconds(work))
        if number >= ROUNDS.start and best_s <= MAX_RATIO * chats * plain_s:
            return True
    return False


@pytest.mark.parametrize("name", [api.name for api in APIS if not api.shape.is_form])
def test_no_field_costs_more_than_ten_times_the_cpu_of_a_plain_chat(as_in_the_process: None, name: str) -> None:
    endpoint = next(endpoint for endpoint, api in API_OF.items() if api.name == name)
    for field in fields(name):
        for shape, value in SHAPES.items():
            given = body(name, field, value)
            assert is_within(lambda: parsed(endpoint, given)), (field, shape)  # noqa: B023


def peak(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [api.name for api in APIS if not api.shape.is_form])
def test_no_field_takes_more_than_ten_times_the_memory_of_a_plain_chat(name: str) -> None:
    endpoint = next(endpoint for endpoint, api in API_OF.items() if api.name == name)
    plain = peak(lambda: parsed(Endpoint.CHAT, PLAIN))
    for field in {*MINIMAL[name], "tools", "metadata", "unknown"}:
        for shape, value in SHAPES.items():
            given = body(name, field, value)
            assert peak(lambda: parsed(endpoint, given)) <= MAX_RATIO * plain, (field, shape)  # noqa: B023


@pytest.mark.parametrize("shape", SHAPES)
def test_parsed_fields_are_forgotten_and_can_be_read_again(shape: str) -> None:
    try:
        held = parse(Endpoint.CHAT, body("chat", "metadata", SHAPES[shape]), CAPS)
    except BadRequest:
        return
    before, hashed = dict(held.fields), fingerprint(held)
    held.let_go()
    assert held.fields == {}
    assert held.read_fields() == before
    assert fingerprint(held) == hashed


LONG: Final = 8 * 2**20
MAX_PART_RATIO: Final = 2.5
"""A part of the work on a long body, against the whole parse of a plain one. With 16 MiB that parse takes 40 ms, and a
part may take 100.
"""


def long(shape: str) -> bytes:
    """A value of `LONG` bytes that is dear to parse or to write."""
    return {
        "text": b'"%b"' % (b"a" * LONG),
        "escapes": b'"%b"' % (b"\\n" * (LONG // 2)),
        "wide": b'"\xf0\x9f\x98\x80%b"' % (b"a" * LONG),
        "wide half": b'"\xf0\x9f\x98\x80%b\\ud800"' % (b"a" * LONG),
        "many values": b'[%b"%b"]' % (b"[]," * 60_000, b"a" * (LONG - 180_000)),
        "too many values": b"[%b1]" % (b"1," * (LONG // 2)),
    }[shape]


HEAD: Final = RequestHead()
SESSIONS: Final = PoolSpec("p", (), sessions=SessionKeys(keys=(SessionKey.FIRST_MESSAGE,)))


def part_seconds(given: bytes) -> list[float]:
    """CPU seconds of each part of the work on a long chat, up to the bytes for the engine."""
    took: list[float] = []
    parts = parse_in_parts(Endpoint.CHAT, given, CAPS, MAX_VALUES, False)
    done: Parsed | None = None
    while done is None:
        begin = thread_time()
        try:
            done = next(parts)
        except BadRequest:
            return [*took, thread_time() - begin]
        took.append(thread_time() - begin)
    begin = thread_time()
    session_of(HEAD, "t", done.fields, [SESSIONS])
    prefix_of(done.fields, payload=done.payload)
    render(done, "m", 5)
    return [*took, thread_time() - begin]


@pytest.mark.parametrize("field", ["content", "metadata", "tools"])
@pytest.mark.parametrize("shape", ["text", "escapes", "wide", "wide half", "many values", "too many values"])
def test_no_part_of_a_long_body_costs_much_more_than_a_plain_one_of_its_size(
    as_in_the_process: None, shape: str, field: str
) -> None:
    value = long(shape)
    if field == "content":
        given = body("chat", "messages", b'[{"role":"user","content":%b}]' % value)
    else:
        given = body("chat", field, b'[{"type":"function","function":{"name":"a","description":%b}}]' % value)
    plain = body("chat", "messages", b'[{"role":"user","content":%b}]' % long("text"))
    for _ in range(TRIES):
        begin = thread_time()
        parsed(Endpoint.CHAT, plain)
        price = thread_time() - begin
        if max(part_seconds(given)) <= MAX_PART_RATIO * price:
            return
    pytest.fail(f"parts of {[round(each / price, 1) for each in part_seconds(given)]} plain bodies")


@interpreted  # compiled classes have no list of their attributes
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_counted", [False, True])
def test_body_parsed_in_parts_gives_the_same_request(shape: str, is_counted: bool) -> None:
    endpoint, field = (Endpoint.MESSAGES, "metadata") if is_counted else (Endpoint.CHAT, "user")
    given = body(API_OF[endpoint].name, field, SHAPES[shape])
    at_once = outcome(lambda: parse_counted(given, CAPS) if is_counted else parse(endpoint, given, CAPS))
    assert outcome(lambda: list(parse_in_parts(endpoint, given, CAPS, MAX_VALUES, is_counted))[-1]) == at_once


def outcome(work: Callable[[], Parsed | None]) -> list[object]:
    """All that a parsed request has, or the error that refuses it."""
    try:
        result = work()
    except BadRequest as refused:
        return [refused.field, refused.message]
    return [getattr(result, name) for name in Parsed.__slots__]


def deflated(content: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(content) + made.flush()


EMPTY: Final = zlib.compressobj(wbits=-15).flush(zlib.Z_SYNC_FLUSH) + b"\x00\x00\x00\xff\xff" * (2**20 // 5)
ENCODED: Final = {"empty blocks": EMPTY, "zeros": deflated(bytes(2**20)), "stored": zlib.compress(PLAIN, 0)[2:-4]}


@pytest.mark.parametrize("encoding", ENCODED)
def test_step_of_decoding_costs_no_more_than_ten_plain_chats(as_in_the_process: None, encoding: str) -> None:
    for number in range(4):

        def step() -> None:
            decoding = Decoding(b"deflate", ENCODED[encoding])
            for _ in range(number + 1):  # noqa: B023
                try:
                    if decoding.step():
                        return
                except CorruptBody:
                    return

        assert is_within(step, number + 1)
