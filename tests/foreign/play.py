"""Plays a script through a gateway and lists the violations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

from tests.foreign.client import Answer, chunks, error_in, request, said_in_stream, said_in_whole
from tests.foreign.replica import Play
from tests.foreign.script import MESSAGES, Ends, Script
from tests.foreign.world import SOUND_STREAM, SOUND_WHOLE, World, sound

SOUND_BODIES: Final = (chunks(SOUND_STREAM.partition(b"\r\n\r\n")[2])[0], SOUND_WHOLE.partition(b"\r\n\r\n")[2])
LATE_S: Final = 30.0
"""Seconds after which the first replica of a hedged request begins its answer."""


def in_lines(data: bytes) -> list[bytes]:
    """The bytes of each line as a piece."""
    return data.splitlines(keepends=True) if data.count(b"\n") < 2000 else _every(data, 1000)


def _every(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _bytes(data: bytes) -> list[bytes]:
    return _every(data, 1 if len(data) < 4000 else 997 if len(data) < 1_000_000 else 65_537)


def _few(data: bytes) -> list[bytes]:
    return _every(data, 7) if len(data) < 4000 else _bytes(data)


CUTS: Final[dict[str, Callable[[bytes], list[bytes]]]] = {
    "whole": lambda data: [data] if data else [],
    "lines": in_lines,
    "bytes": _bytes,
    "few": _few,
}
LARGE_BYTES: Final = 200_000
HUGE_BYTES: Final = 5_000_000


def sizes_of(script: Script, hedged: bool) -> tuple[str, ...]:
    """Sizes of reads. With two replicas, pieces have seven bytes; large scripts have fewer runs, to save time."""
    if len(script.data) > HUGE_BYTES:
        return () if hedged else ("whole",)
    if len(script.data) > LARGE_BYTES:
        return ("few",) if hedged else ("whole", "bytes")
    return ("whole", "lines", "few" if hedged else "bytes")


def play_of(script: Script, pieces: Iterable[bytes], *late_s: float) -> Callable[[bytes], Play]:
    """The part of a replica: its delay for each request; the last delay repeats."""
    given = list(pieces)
    asked = 0

    def part(_: bytes) -> Play:
        nonlocal asked
        asked += 1
        return Play(given, script.then, late_s[min(asked, len(late_s)) - 1])

    return part


async def problems(world: World, script: Script, cut: str, aggregate: bool, hedged: bool) -> list[str]:
    """All violations of a script."""
    if aggregate and script.choices > 1:
        return []  # refused without a replica
    # The duplicate wins; if pieces are lines, the first attempt does.
    late_s = (0.0,) if not hedged else (LATE_S, LATE_S + 5.0) if cut == "lines" else (LATE_S, 0.0)
    world.set_parts(play_of(script, CUTS[cut](script.data), *late_s))
    before, errors = len(world.records), world.errors()
    asked = script.stream and not aggregate
    door = world.door()
    asked_at = world.loop.time()
    answer = await world.ask(door, request(script.path, asked, world.unlike(), script.choices))
    found = judged(script, answer, aggregate)
    took_s = world.loop.time() - asked_at
    if script.within_s is not None and not hedged and took_s > script.within_s:
        found.append(f"over after {took_s:g} s, not {script.within_s:g} s")
    if answer is not None and answer.extra:
        found.append(f"more than one answer: {answer.extra[:80]!r}")
    await world.turn()  # for the rest of the message, after an answer that said its own end
    found += world.held()
    found += _accounted(world, script, before, aggregate)
    door.close()
    world.set_parts(sound)
    down, blamed = world.down(), [name for name, error in world.errors().items() if error != errors[name]]
    if script.fault is not None and bool(blamed) != script.fault:
        found.append(f"blamed: {blamed}, although fault is {script.fault}")
    if not down and not await world.served():
        found.append("who comes next is not served")
    if not await world.recovered():
        found.append("a replica does not come back")
    return found


async def problems_elsewhere(world: World, script: Script) -> list[str]:
    """The violations with a second, healthy replica: nothing may be worse, and answers that have not begun may come
    from there."""
    first = play_of(script, CUTS["whole"](script.data), 0.0)
    asked = 0

    def part(body: bytes) -> Play:
        nonlocal asked
        asked += 1
        return first(body) if asked == 1 else sound(body)

    world.set_parts(part)
    door = world.door()
    answer = await world.ask(door, request(script.path, script.stream, world.unlike(), script.choices))
    door.close()
    world.set_parts(sound)
    found = world.held()
    if answer is None or answer.body not in SOUND_BODIES:
        found += ["not answered by the other replica"] if script.elsewhere else judged(script, answer, aggregate=False)
    if not await world.served():
        found.append("who comes next is not served, although one replica is sound")
    if not await world.recovered():
        found.append("a replica does not come back")
    return found


def _accounted(world: World, script: Script, before: int, aggregate: bool) -> list[str]:
    records = world.records[before:]
    if len(records) != 1:
        return [f"{len(records)} records of one request"]
    if script.usage is None or expected(script, aggregate) is not Ends.WHOLE:
        return []
    told = records[0].prompt_tokens, records[0].output_tokens
    return [] if told == script.usage else [f"accounted {told}, not {script.usage}"]


def expected(script: Script, aggregate: bool) -> Ends:
    """The expected outcome in this kind of tier."""
    return script.assembled if aggregate and script.stream and script.ends is Ends.WHOLE else script.ends


def judged(script: Script, answer: Answer | None, aggregate: bool) -> list[str]:
    """The violations in one answer."""
    if answer is None:
        return ["no answer"]
    match expected(script, aggregate):
        case Ends.WHOLE:
            return _whole(script, answer, put_together=aggregate and script.stream)
        case Ends.BROKEN:
            return _error(script, answer, 502)
        case Ends.REFUSED:
            return _error(script, answer, script.status, refused=True)
        case Ends.EITHER:
            return [] if answer.status == 200 and answer.framed else _error(script, answer, 502)


def _whole(script: Script, answer: Answer, put_together: bool) -> list[str]:
    found = [] if answer.framed else ["the answer has no end"]
    if answer.status != 200:
        return [*found, f"status {answer.status}: {answer.body[:120]!r}"]
    if answer.streamed and (error := error_in(answer.body)) is not None:
        return [*found, f"an error event: {error}"]
    if script.text is None:
        as_it_is = put_together or answer.streamed or answer.body == payload_of(script.data)
        return found if as_it_is else [*found, f"not passed on as it is: {answer.body[:80]!r}"]
    read = said_in_stream if answer.streamed else said_in_whole
    said = read(script.path, answer.body)
    if said != script.text:
        found.append(f"text {said[:60]!r} ({len(said)}), not {script.text[:60]!r} ({len(script.text)})")
    return found


def _error(script: Script, answer: Answer, status: int, refused: bool = False) -> list[str]:
    found = [] if answer.framed else ["the answer has no end"]
    if answer.streamed and answer.status == 200:
        error = error_in(answer.body)
        if refused:
            found.append(f"a stream, not the status {status}")
        if error is None or not error.get("message"):
            found.append(f"no error event at the end: {answer.body[-120:]!r}")
        if b"[DONE]" in answer.body:
            found.append("[DONE] after an error")
        said = said_in_stream(script.path, answer.body)
        if script.text is not None and not script.text.startswith(said):
            found.append(f"text {said[:60]!r}, which is not in {script.text[:60]!r}")
        return found
    if answer.status != status and (refused or answer.status not in (503, 504)):
        return [*found, f"status {answer.status}, not {status}: {answer.body[:120]!r}"]
    return found + _dialect(script, answer)


HELD_BYTES: Final = 1024 * 1024


def payload_of(data: bytes) -> bytes:
    """The body of a whole answer with correct framing."""
    head, _, rest = data.partition(b"\r\n\r\n")
    return chunks(rest)[0] if b"transfer-encoding" in head else rest


def dialect_faults(script: Script, answer: Answer) -> list[str]:
    """The violations that no answer may have."""
    if answer.status != 200:
        return ([] if answer.framed else ["the error has no end"]) + _dialect(script, answer)
    # A whole answer that is too long to hold is passed on before its end is known.
    may_break = not answer.streamed and len(script.data) > HELD_BYTES
    return [] if answer.framed or may_break else ["the answer has no end"]


def _dialect(script: Script, answer: Answer) -> list[str]:
    try:
        value = json.loads(answer.body)
    except ValueError:
        return [f"an error that is not JSON: {answer.body[:80]!r}"]
    error = value.get("error")
    right = isinstance(error, dict) and error.get("message") and isinstance(error.get("type"), str)
    if script.path == MESSAGES:
        right = right and value.get("type") == "error"
    return [] if right else [f"an error in no dialect: {answer.body[:80]!r}"]
