"""Scripts that are cut, joined and damaged by chance, for fast and slow readers: `python -m tests.foreign.mutate
--count 10000`.

For any bytes of a replica, its client gets exactly one answer or one error, and nothing hangs beyond its timeout. The
connection is closed or safe to reuse, and no other client's request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from gateway.core.results import Outcome
from gateway.observe.build_info import kind
from gateway.observe.requests.row import RequestRow
from tests.foreign.client import Answer, chunks, error_in, request, said_in_stream
from tests.foreign.gateways import Gateways, Kind
from tests.foreign.play import dialect_faults
from tests.foreign.replica import Play
from tests.foreign.script import CHAT, DONE, TEXT, Script, Then, chunk
from tests.foreign.servers import FLEET
from tests.foreign.world import SOUND_STREAM, TTFT_S, World, sound, watched

MAX_BYTES: Final = 60_000
"""Scripts up to this size are chosen mostly. One choice in thirty may be any script."""
MAX_TOKENS: Final = 16
MAX_PROMPT_TOKENS: Final = 1000
"""A larger count of prompt tokens is impossible for any prompt here."""
PACES: Final[tuple[dict[str, float], ...]] = ({}, {}, {"pace": 2048, "beat_s": 0.01}, {"pace": 300, "beat_s": 0.01})
AFTERWARDS: Final = (Then.KEEP, Then.KEEP, Then.CLOSE, Then.RESET)
KINDS: Final[tuple[Kind, ...]] = ((False, False), (False, False), (True, False), (False, True), (True, True))
ODD: Final = (
    *(b"\x00", b"\xff\xfe", b"\xf0\x9f", b"\xef\xbb\xbf", b"\r\n\r\n", b"\n\n", b"\r", b"0\r\n\r\n"),
    *(b"data: [DONE]\n\n", b"data:", b"event: error\n", b"HTTP/1.1 200 OK\r\n\r\n", b"null", b'""', b"{}", b"[]"),
    *(b"1e999", b"-1", b"9" * 400, b"18446744073709551616", b"[" * 3000, b'"\\ud83d"'),
    *(b'"error":{"message":"x","code":503}', b'"usage":{"prompt_tokens":1e300}', b'"finish_reason":"stop"'),
)
"""Odd bytes that are inserted anywhere."""
VALUES: Final = (
    *(b"null", b"true", b"0", b"-1", b"2.0", b"0.5", b"1e300", b"1e999", b"9" * 400, b"9223372036854775808"),
    *(
        b'""',
        b'"abort"',
        b'"error"',
        b'"\\ud83d"',
        b'"\\u0000"',
        b'"\xff"',
        b'"503"',
        b'"x"' * 2,
        b"{}",
        b"[]",
        b"[[]]",
    ),
    *(b'{"a":1}', b"[null]", b'[{"index":7}]', b"NaN", b"[" * 600 + b"]" * 600, b'"' + b"y" * 5000 + b'"'),
)
"""JSON that replaces a value."""
_VALUE: Final = re.compile(rb'":\s*("(?:[^"\\]|\\.)*"|-?[0-9.eE+]+|null|true|false|\{[^{}]*\}|\[[^][]*\])')
_LENGTH: Final = re.compile(rb"content-length: \d+")

SCRIPTS: Final = list(FLEET.values())
SMALL: Final = [script for script in SCRIPTS if len(script.data) <= MAX_BYTES]


@dataclass(frozen=True, slots=True)
class Case:
    """One random example."""

    script: Script
    kind: Kind
    pieces: list[bytes]
    pace: dict[str, float]
    leaves_after_s: float
    """Seconds after which the client leaves; 0 if it stays."""
    silent: bool
    """Whether a request to a silent replica follows. It shows whether the deadlines still work."""


# ---- making one


def _damaged(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    upto = min(len(data), at + random.choice((1, 1, 3, 20, 200)))
    match random.randrange(7):
        case 0:
            return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[upto:]
        case 2:
            return data[:upto] + data[at:]
        case 3:
            return data[:at] + random.choice(ODD) + data[at:]
        case 4:
            return data[:at] + random.choice(ODD) + data[upto:]
        case 5:
            return data[:at]
        case _:
            return data[:at] + random.choice(SMALL).data[-random.randrange(1, 400) :]


def _retyped(random: Random, data: bytes) -> bytes:
    """Replace the value of a JSON field."""
    found = list(_VALUE.finditer(data))
    if not found:
        return _damaged(random, data)
    value = random.choice(found)
    return data[: value.start(1)] + random.choice(VALUES) + data[value.end(1) :]


def _reframed(random: Random, data: bytes) -> bytes:
    """Damage inside correct framing, so that only a reader of the payload finds it."""
    head, _, rest = data.partition(b"\r\n\r\n")
    chunked = b"transfer-encoding: chunked" in head
    if not chunked and b"content-length: " not in head:
        return _damaged(random, data)
    try:
        payload = chunks(rest)[0] if chunked else rest
    except ValueError:
        return _damaged(random, data)
    for _ in range(random.randrange(1, 4)):
        payload = random.choice((_damaged, _retyped))(random, payload)
    if not chunked:
        return _LENGTH.sub(b"content-length: %d" % len(payload), head) + b"\r\n\r\n" + payload
    size = random.choice((7, 100, 1000, 100_000))
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    return head + b"\r\n\r\n" + b"".join(chunk(part) for part in parts) + b"0\r\n\r\n"


def cut(random: Random, data: bytes) -> list[bytes]:
    """Reads of any size."""
    pieces, at = [], 0
    size = random.choice((1, 10, 300, 5000, 2**20)) if len(data) < 3000 else random.choice((3000, 20_000, 2**20))
    while at < len(data):
        step = random.randrange(1, 2 * size)
        pieces.append(data[at : at + step])
        at += step
    return pieces


def case_of(seed: int) -> Case:
    """The example of that seed."""
    random = Random(seed)
    script = random.choice(SCRIPTS if random.random() < 1 / 30 else SMALL)
    data = script.data
    if random.random() < 0.6:
        data = _reframed(random, data)
    else:
        for _ in range(random.randrange(4)):
            data = _damaged(random, data)
    then = random.choice(AFTERWARDS)
    leaves_after_s = random.choice((0.001, 0.02, 1.0, 40.0)) if random.random() < 0.1 else 0.0
    played = replace(script, data=data, then=then, stream=script.stream if random.random() < 0.9 else not script.stream)
    return Case(
        played, random.choice(KINDS), cut(random, data), random.choice(PACES), leaves_after_s, random.random() < 0.1
    )


# ---- playing one


async def faults(world: World, case: Case) -> list[str]:
    """The violations in this example."""
    script = case.script
    first, second = SOUND_STREAM[:500], SOUND_STREAM[500:]
    world.set_parts(lambda _: Play([first, second], between_s=2.0))
    neighbour = world.door()
    neighbour.protocol.data_received(request(CHAT, True, world.unlike()))
    await world.turn()
    world.set_parts(lambda _: Play(case.pieces, script.then))
    door = world.door(**case.pace)
    data = request(script.path, script.stream, world.unlike(), script.choices if script.stream else 1)
    found: list[str] = []
    if case.leaves_after_s:
        door.protocol.data_received(data)
        await asyncio.sleep(case.leaves_after_s)
        door.leave()
    else:
        answer = await world.ask(door, data)
        if answer is None:
            found.append("no answer")
        else:
            found += dialect_faults(script, answer)
            if answer.extra:
                found.append(f"more than one answer: {answer.extra[:80]!r}")
            found += _told(script, answer, world.records)
    beside = await world.answer(neighbour)
    if (
        beside is None
        or beside.status != 200
        or said_in_stream(CHAT, beside.body) != TEXT
        or b"[DONE]" not in beside.body
    ):
        found.append(f"who was served beside it was not: {beside}")
    world.set_parts(sound)
    for one in (door, neighbour):
        one.leave()
    await world.turn()
    found += world.held()
    found += _overcounted(script, world.records)
    if case.silent and not world.down():
        found += await _outlived(world)
    if not world.down() and not await world.served():
        found.append("who comes next is not served")
    if not await world.recovered():
        found.append("a replica does not come back")
    return found


def _told(script: Script, answer: Answer, records: list[RequestRow]) -> list[str]:
    """The violations after an error inside a stream: its client must not take the stream for complete."""
    if not answer.streamed or answer.status != 200:
        return []
    record = max(records, key=lambda row: row.ended_at - row.e2e_s)
    if record.outcome is Outcome.OK:
        return []
    if error_in(answer.body) is None:
        return [f"no error event at the end of a stream that failed: {answer.body[-120:]!r}"]
    return ["[DONE] after an error event"] if answer.body.endswith(DONE) else []


def _overcounted(script: Script, records: list[RequestRow]) -> list[str]:
    """Whether more tokens were counted than the request could cost."""
    record = max(records, key=lambda row: row.ended_at - row.e2e_s)
    most = max(MAX_TOKENS * script.choices, len(script.data))
    right = 0 <= record.output_tokens <= most and 0 <= record.prompt_tokens <= MAX_PROMPT_TOKENS
    return [] if right else [f"accounted {record.prompt_tokens} and {record.output_tokens}"]


async def _outlived(world: World) -> list[str]:
    """Whether deadlines still fire."""
    world.set_parts(lambda _: Play([]))
    door = world.door()
    began = world.loop.time()
    answer = await world.ask(door, request(CHAT, True, world.unlike()))
    took_s = world.loop.time() - began
    world.set_parts(sound)
    door.leave()
    await world.turn()
    right = answer is not None and answer.status == 504 and took_s < TTFT_S + 2.0
    return [] if right else [f"no timeout at a silent replica, but {answer} after {took_s:g} s"]


def run(seeds: range, report: Callable[[int, Case, list[str]], None], make: Callable[[int], Case] = case_of) -> None:
    """Play the case that `make` returns for each seed, and call `report` for each that fails."""
    gateways = Gateways()
    for seed in seeds:
        case = make(seed)
        found = gateways.loop.run_until_complete(_one(gateways, case))
        if found:
            report(seed, case, found)
    gateways.close()


async def _one(gateways: Gateways, case: Case) -> list[str]:
    world = await gateways.world(case.kind)
    with watched(gateways.loop) as seen:
        found = await faults(world, case)
    found += [f"logged: {line}" for line in seen]
    if found:
        gateways.drop(case.kind)
    return found


def main(make: Callable[[int], Case] = case_of) -> int:
    """The command line for long runs of the examples of `make`."""
    parser = argparse.ArgumentParser(description="Plays damaged or invented answers.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the bytes of what goes wrong")
    given = parser.parse_args()
    logging.getLogger("tailgate").propagate = False
    wrong: Counter[str] = Counter()

    def tell(seed: int, case: Case, found: list[str]) -> None:
        wrong[found[0][:60]] += 1
        print(
            f"seed {seed}, {case.script.name!r}, {case.kind}, {case.script.then.name}: {'; '.join(found)[:400]}",
            flush=True,
        )
        if given.show:
            print(case.pieces, file=sys.stderr)

    run(range(given.seed, given.seed + given.count), tell, make)
    print(f"{given.count} examples from seed {given.seed} over {kind()} code: {sum(wrong.values())} wrong")
    for what, n in wrong.most_common(20):
        print(f"  {n:5} {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
