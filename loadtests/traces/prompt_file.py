"""Prompts of a user, as traffic: OpenAI Batch files, JSON lines of bodies, ShareGPT's conversations, plain lines.

    batch      {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    bodies     {"messages": [...]}, {"prompt": ...}, {"input": ...}; or {"at": 1.5, "body": {...}} with times in seconds
    sharegpt   [{"conversations": [{"from": "human", "value": "..."}, ...]}, ...], as one document or as lines
    lines      anything else: each line is a prompt

A file is read as it is sent, so it may be of any size. `.gz` is read, too.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import IO, Any

import orjson

from gateway.core.request import GENERATING, Endpoint
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.traces import GZIP, Mix, TraceError
from loadtests.replay.written import Message, Written
from loadtests.traces.sharegpt import ANSWERS, ASKS

RATE_PER_S = 10.0
"""Requests per second of a file without times, unless the user says another rate."""
BUFFER = 10_000
"""Requests among which a shuffle draws: more would have to be in memory at once."""
CHUNK = 1 << 20
MAX_DOCUMENT = 1 << 26
"""Letters of one conversation; more is not one."""
PATHS = {
    "messages": Endpoint.CHAT.value,
    "prompt": Endpoint.COMPLETIONS.value,
    "input": Endpoint.RESPONSES.value,
    "query": Endpoint.RERANK.value,
}
"""The API of a body that names none, by a field that it has."""
CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A workload of written requests, in the order of the file unless `shuffled`. Raises TraceError or OSError."""

    path: Path
    mix: Mix
    api: str | None = None
    """Path of bodies that name none."""
    rate_per_s: float | None = None
    """Mean rate of a Poisson process; None: the times of the file, else RATE_PER_S."""
    speed: float = 1.0
    """Multiple of the speed of the file's own times."""
    duration_s: float | None = None
    """End of the traffic. A file without times is repeated until then."""
    sample: int | None = None
    """Number of requests to take at random; None: all."""
    shuffled: bool = False
    think_s: float = 0.0
    """Mean seconds from an answer to the next question of a conversation."""
    stream: bool | None = None
    """Whether answers of texts are streamed; None: as the bodies say, and prompts without a body are."""
    on_empty: Callable[[int], None] = lambda number: None
    """Called once with the number of each conversation in which nobody asks anything. It is left out."""

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The requests of one run."""
        draw, whose = Random(f"{seed} prompts"), Random(f"{seed} mix")
        at, until_s, sent = 0.0, math.inf if self.duration_s is None else self.duration_s, 0
        rate, of = self.rate_per_s or RATE_PER_S, self
        while True:
            timed = False
            for written in of._chosen(draw):
                if self.rate_per_s is None and not math.isnan(written.at):
                    if written.at / self.speed < at:
                        raise TraceError(f"{self.path}: the times are not in order: sort the file, or give --rate")
                    at, timed = written.at / self.speed, True
                else:
                    at += draw.expovariate(rate)
                if at >= until_s:
                    return
                tier, nth = self.mix.whose(whose)
                sent += 1
                yield replace(written, at=at, tier=tier, tenant=f"{tier}-{nth}", model=self.mix.model, session=sent)
            if timed or math.isinf(until_s) or not sent:
                return
            of = replace(self, on_empty=lambda number: None)  # counted already

    def _chosen(self, draw: Random) -> Iterator[Written]:
        found = self._requests()
        if self.sample is not None:
            found = iter(_drawn(found, self.sample, draw))
        return _shuffled(found, draw) if self.shuffled else found

    def _requests(self) -> Iterator[Written]:
        try:
            with _opened(self.path) as file:
                for number, (place, text, document) in enumerate(_documents(file, self.path), 1):
                    try:
                        written = self._written(text, document)
                    except ValueError as error:
                        raise TraceError(f"{self.path}:{place}: {error}") from None
                    if written is None:
                        self.on_empty(number)
                    else:
                        yield written
        except (EOFError, UnicodeDecodeError, zlib.error) as error:
            raise TraceError(f"{self.path}: cannot be read: {error}") from None

    def _written(self, text: str, document: Any) -> Written | None:
        """A request from a line, or from an element of a list; None if nobody asks anything."""
        if isinstance(document, str):
            text, document = document, None
        if document is None:
            return self._request({"messages": [{"role": "user", "content": text}], "stream": True})
        if not isinstance(document, dict):
            raise ValueError("is neither a text nor an object")
        if "conversations" in document:
            return self._talk(document["conversations"])
        at = document.get("at", math.nan)
        if type(at) not in (int, float) or at < 0.0 or at == math.inf:
            raise ValueError(f"at: {at!r} is not a time: write seconds from the beginning")
        body = document.get("body")
        if body is None:
            body = {name: value for name, value in document.items() if name != "at"}
        if not isinstance(body, dict):
            raise ValueError("body is not an object")
        path = document.get("url")
        if path is not None and path not in set(Endpoint):
            raise ValueError(f"url: {path!r} is not a path of the API, such as {Endpoint.CHAT.value}")
        return replace(self._request(body, path), at=float(at))

    def _request(self, body: dict[str, Any], path: str | None = None) -> Written:
        path = path or self.api or next((api for name, api in PATHS.items() if name in body), None)
        if path is None:
            raise ValueError(f"the body has none of {', '.join(PATHS)}: say its API with --api")
        wanted = next((body[name] for name in CAPS if name in body), 0)
        if self.stream is not None and path in GENERATING:
            body = {**body, "stream": self.stream}
        stream = body.get("stream") is True
        return Written(math.nan, "", "", "", 0, wanted if type(wanted) is int else 0, stream, path=path, body=body)

    def _talk(self, said: Any) -> Written | None:
        """A conversation in ShareGPT's form: its first question, with later ones; None without a question."""
        if not isinstance(said, list):
            raise ValueError("conversations is not a list")
        turns: list[tuple[Message, Message]] = []
        opening: list[Message] = []
        answer: Message | None = None
        for part in said:
            by, value = (part.get("from"), part.get("value")) if isinstance(part, dict) else (None, None)
            if not isinstance(value, str):
                raise ValueError("conversations: each part has from and value")
            if by in ANSWERS:
                answer = {"role": "assistant", "content": value}
            elif by in ASKS and not (opening and opening[-1]["role"] == "user"):
                opening.append({"role": "user", "content": value})
            elif by in ASKS and answer is not None:
                turns.append((answer, {"role": "user", "content": value}))
                answer = None
            elif not opening:
                opening.append({"role": "system", "content": value})
        if not opening or opening[-1]["role"] != "user":
            return None  # as many in the files that people share
        first = self._request({"messages": opening, "stream": True}, Endpoint.CHAT.value)
        return replace(first, later=tuple(turns), think_s=self.think_s)


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
    return gzip.open(path, "rt", encoding="utf-8-sig") if packed else path.open(encoding="utf-8-sig")


def _documents(file: IO[str], path: Path) -> Iterator[tuple[str, str, Any]]:
    """The place, the text and the document of each request. A list has texts or objects: `[INST]` begins a text."""
    first = file.read(1)
    while first.isspace():
        first = file.read(1)
    if first != "[":
        return _lines(first, file, path)
    while (following := file.read(1)).isspace():
        first += following
    return _array(following, file, path) if following in '{"]' else _lines(first + following, file, path)


def _lines(first: str, file: IO[str], path: Path) -> Iterator[tuple[str, str, Any]]:
    """The place, the text and the document of each line. A file whose first line is no object has plain lines."""
    plain = not first.startswith("{")
    for number, line in enumerate(file, 1):
        text = (first + line if number == 1 else line).strip()
        if not text:
            continue
        if plain:
            yield str(number), text, None
            continue
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{path}:{number}: {error}: a JSON object is expected, as on the lines before") from None
        if not isinstance(document, dict):
            raise TraceError(f"{path}:{number}: a JSON object is expected, as on the lines before")
        yield str(number), text, document


def _array(first: str, file: IO[str], path: Path) -> Iterator[tuple[str, str, Any]]:
    """The elements of a JSON list, one by one. Its bracket and the next letter are read."""
    decoder, rest, number = json.JSONDecoder(), first, 0
    while True:
        rest = rest.lstrip().removeprefix(",").lstrip()
        if rest.startswith("]"):
            return
        try:
            if not rest:
                raise ValueError("more has to be read")
            element, end = decoder.raw_decode(rest)
            if end == len(rest):
                raise ValueError("the list goes on")
        except ValueError as error:
            more = file.read(CHUNK)
            if not more:
                raise TraceError(f"{path}: element {number + 1}: {error}: the list is cut off, or no JSON") from None
            rest += more
            if len(rest) > MAX_DOCUMENT:
                raise TraceError(f"{path}: element {number + 1}: is longer than {MAX_DOCUMENT:,} letters") from None
            continue
        number, rest = number + 1, rest[end:]
        yield f"element {number}", "", element


def _drawn(found: Iterator[Written], count: int, draw: Random) -> list[Written]:
    """`count` of them at random, in their order: a reservoir (Vitter, Algorithm R, 1985)."""
    kept = list(enumerate(islice(found, count)))
    for number, written in enumerate(found, count):
        at = draw.randrange(number + 1)
        if at < count:
            kept[at] = number, written
    return [written for _, written in sorted(kept, key=lambda pair: pair[0])]


def _shuffled(found: Iterator[Written], draw: Random) -> Iterator[Written]:
    """In random order: each is drawn from the next BUFFER."""
    held = list(islice(found, BUFFER))
    for written in found:
        at = draw.randrange(BUFFER)
        yield held[at]
        held[at] = written
    draw.shuffle(held)
    yield from held
