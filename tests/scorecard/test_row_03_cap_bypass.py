"""Row 3: no body makes a replica do more than its tier allows, judged by the bytes the replica gets.

The check here does not use the gateway's own tables. It reads a body in every way of engines (first or last of
duplicate keys, names in any case, numbers of any type). No reading may exceed the caps.
"""

from __future__ import annotations

import asyncio
import json
import random
import unicodedata
from typing import Any, cast

import pytest

from tests.effort import examples

from .bodies import CONTROL, COSTLY, MINIMAL, OUTPUT, UNCAPPED, nasty
from .capture import Answer, Call, Capture, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import head
from .waiting import SOAK

CASES = 100_000 if SOAK else examples(5_000)
AT_ONCE = 8
LIMIT, N, BEST_OF, TOP = 50, 2, 2, 3
TIER = f"caps: {{n: {N}, best_of: {BEST_OF}, top_logprobs: {TOP}, prompt_logprobs: 0}}"
HEADERS = (
    "X-Data-Parallel-Rank: 3",
    "X-Vllm-Priority: -100",
    "X-Override-Priority: 100",
    "X-Session-ID: mine",
    "Content-Type: application/json; charset=utf-16",
    "Content-Encoding: gzip",
    "Content-Encoding: identity",
    "X-Tailgate-Tier: premium",
    "X_Tier: premium",
)
NEVER_SENT = {name.partition(":")[0].lower() for name in HEADERS} - {"content-type"}
FORBIDDEN = {*CONTROL, "max_new_tokens", "max_length", "num_predict"}


def violations(call: Call) -> list[str]:
    """All fields of a request at the replica that could cost more than the caps, or control the engine."""
    found = [f"header {name}" for name, _ in call.headers if name in NEVER_SENT]
    if call.header("content-length") != [str(len(call.body))] or call.header("transfer-encoding"):
        found.append("framing")
    if call.header("content-type") != ["application/json"]:
        found.append("content-type")
    body = json.loads(call.body.decode("utf-8", "strict"), object_pairs_hook=_once, parse_constant=_no_constant)
    for name in body:
        plain = unicodedata.normalize("NFKC", name).casefold().strip(" \t\r\n\0\u200b\ufeff").replace("-", "_")
        plain = plain.replace("\u0131", "i")
        if plain in {*COSTLY, *FORBIDDEN} and plain != name:
            found.append(f"{name!r} may be read as {plain}")
        if plain in FORBIDDEN:
            found.append(name)
    for name, value in body.get("chat_template_kwargs", {}).items():
        if name in FORBIDDEN or isinstance(value, dict | list):
            found.append(f"chat_template_kwargs.{name}")
    bounds = dict.fromkeys(OUTPUT, LIMIT) | {"n": N, "best_of": BEST_OF, "min_tokens": LIMIT, "top_logprobs": TOP}
    bounds |= {"thinking_token_budget": LIMIT, "prompt_logprobs": -1}
    if call.path == "/v1/completions":
        bounds["logprobs"] = TOP
    for name, bound in bounds.items():
        if name in body and not (type(body[name]) is int and 0 <= body[name] <= bound):
            found.append(f"{name}: {body[name]!r}")
    caps = [body[name] for name in OUTPUT if name in body]
    if len(caps) != (0 if call.path in UNCAPPED else 1) or 0 in caps:
        found.append(f"caps {caps}")
    if body.get("echo") and "logprobs" in body:
        found.append("log-probabilities of the prompt")
    if body.get("thinking", {}).get("budget_tokens", 0) >= LIMIT:
        found.append("thinking budget")
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), "a key stands twice"
    return dict(pairs)


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def framed(dice: random.Random, path: str, number: int, body: bytes) -> bytes:
    """The request, its body with a length or in chunks."""
    lines = [f"X-Request-Id: case-{number}"]
    if dice.random() < 0.3:
        lines.append(dice.choice(HEADERS))
    if dice.random() < 0.7 or not body:
        return head(path, *lines, f"Content-Length: {len(body)}") + body
    cut = dice.randrange(len(body))
    pieces = [piece for piece in (body[:cut], body[cut:]) if piece]
    extension = dice.choice((b"", b"", b";name=value"))
    trailer = dice.choice((b"", b"", b"Content-Length: 99\r\nX-Vllm-Priority: -1\r\n"))
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return head(path, *lines, "Transfer-Encoding: chunked") + chunks + b"0\r\n" + trailer + b"\r\n"


@pytest.mark.timeout(900 if SOAK else 600)
async def test_no_request_body_gets_past_the_caps(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    capture.answer = lambda call: Answer(whole())
    text = rules(capture.url, tier=TIER).replace("limit: 4000", f"limit: {LIMIT}")
    gw = await gateway(text)
    numbers = iter(range(CASES))
    served = 0

    async def work() -> None:
        nonlocal served
        client = await connect(gw.url)
        for number in numbers:
            dice = random.Random(number)
            path = dice.choice(list(MINIMAL))
            body = nasty(dice, path)
            response = await client.ask(framed(dice, path, number, body))
            if response.status == 200:
                served += 1
            else:
                assert response.status == 400, (number, body, response)
            if response.headers.get("connection") == "close":
                client = await connect(gw.url)
            if len(capture.calls) > 1000:
                judge()

    total = 0

    def judge() -> None:
        nonlocal total
        for call in capture.calls:
            assert not violations(call), (call.header("x-request-id"), call.body)
        total += len(capture.calls)
        for connection in capture.connections:
            connection.received = b""
            connection.calls.clear()
        capture.calls.clear()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    judge()
    # Refused requests never arrived; served ones arrived once. Both are many.
    assert total == served
    assert 0.1 * CASES < served < 0.9 * CASES


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"max_tokens": LIMIT + 1}, "max_tokens"),
        ({"n": N + 1}, "n:"),
        ({"priority": 0}, "priority"),
        ({"MAX_TOKENS": 1}, "may be read as"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"min_tokens": True}, "min_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "caps"),
        ({"max_tokens": None}, "max_tokens"),
    ],
)
def test_cap_check_of_the_test_finds_violations(fields: dict[str, Any], why: str) -> None:
    body = json.dumps({"max_tokens": 5} | MINIMAL["/v1/chat/completions"] | fields).encode()
    line = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    found = violations(Call(line % len(body), body, cast(Any, None)))
    assert len(found) >= 1
    assert why in found[0]
