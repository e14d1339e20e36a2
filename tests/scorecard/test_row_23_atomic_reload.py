"""Row 23: reloads are atomic: no request fails or sees half of one, and a bad policy changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from gateway.app import Gateway
from gateway.policy import load
from gateway.settings import Settings

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, Capture, token
from .conftest import Connect, EmulatorFactory
from .policies import sha256
from .process import serving
from .raw import MODEL, Client, Response, chat, connect
from .waiting import until

RELOADS = 100
CLIENTS = 8
KEY = "the-key-of-a-client"
TOKEN = "a-token-for-the-admin"
TIERS = {"even": 5, "odd": 7}
"""Policies take turns: one has the tier `even` with a default output cap of 5, the next `odd` with 7. A tier must never
be seen with the cap of the other."""


def _policy(number: int, urls: list[str]) -> str:
    """The Nth policy: another tier, other caps, limits and slots, and other replicas."""
    tier = "even" if number % 2 == 0 else "odd"
    some = urls[: 1 + number % len(urls)] if number % 3 else urls[::-1]
    return f"""\
apiVersion: tailgate/v1
# {number}
models: {{{MODEL}: {{pools: [main]}}}}
pools:
  main:
    replicas: [{", ".join(some)}]
    slots: {16 + number % 5}
    router: {("least-prefill", "round-robin")[number % 2]}
tiers:
  {tier}:
    max_tokens: {{default: {TIERS[tier]}, limit: {100 + number}}}
    limits: {{requests: {100_000 + number}/min}}
keys:
  - {{sha256: {sha256(KEY)}, tenant: acme, tier: {tier}}}
"""


def _invalid(number: int, good: str) -> bytes | None:
    """Twenty ways to break a policy; None: the file is missing."""
    tier = "even" if "even:" in good else "odd"
    broken = (
        b"",
        b"\xff\xfe\x00",
        b"pools: [",
        b"apiVersion: tailgate/v2\n",
        good.replace("slots:", "slot:"),
        good.replace("slots: ", "slots: -"),
        good.replace("http://", "ftp://"),
        good.replace("pools: [main]", "pools: [mian]"),
        good.replace("tier: ", "tier: not-"),
        good.replace("router: ", "router: not-"),
        good.replace(sha256(KEY), KEY),
        good.replace(sha256(KEY), '"${NOT_SET}"'),
        good.replace("/min", "/fortnight"),
        good.replace("default: ", "default: 9999"),
        good.replace(f"  {tier}:", "  *unknown:"),
        good + "tiers: {}\n",
        good.replace("  main:", "  'bad name!':"),
        good.replace("limits: {", "limits: {concurrency: many, "),
        good.replace("{pools: [main]}", "{pools: [main], aliases: [a/b, a/b c]}"),
        None,
    )[number % 20]
    return broken.encode() if isinstance(broken, str) else broken


async def _request_ids(url: str, stop: asyncio.Event, answers: list[Response]) -> None:
    """Send one request after another on one connection, every second one streamed."""
    client: Client = await connect(url)
    while not stop.is_set():
        stream = len(answers) % 2 == 0
        answers.append(await client.ask(chat(f"x-api-key: {KEY}", stream=stream, max_tokens=None, stream_options=None)))
    await client.close()


@asynccontextmanager
async def _reloadable(file: Path) -> AsyncIterator[Gateway]:
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, admin_token=SecretStr(TOKEN))
    async with Gateway(settings, load(file), file) as gw:
        yield gw


def _write(file: Path, content: bytes | None) -> None:
    """Replace the file, as editors do."""
    if content is None:
        file.unlink()
        return
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.replace(file)


@pytest.mark.long
async def test_hundred_reloads_under_load_fail_no_request(tmp_path: Path, emulator: EmulatorFactory) -> None:
    replicas = await emulator(replicas=3, output_sigma=0.0)
    file = tmp_path / "policy.yaml"
    good = _policy(0, replicas.urls)
    file.write_text(good)
    answers: list[Response] = []
    stop = asyncio.Event()
    refused = 0
    async with _reloadable(file) as gw, httpx.AsyncClient(base_url=gw.admin_url) as admin:
        authorized = {"authorization": f"Bearer {TOKEN}"}
        asking = [asyncio.create_task(_request_ids(gw.url, stop, answers)) for _ in range(CLIENTS)]
        for number in range(1, RELOADS + 1):
            before, asked = gw.handler.policy, len(answers)
            if number % 5 == 0:
                _write(file, _invalid(number // 5 - 1, good))
                done = (await admin.post("/admin/reload", headers=authorized)).json()
                assert not done["ok"], f"number {number} should be wrong"
                assert gw.handler.policy.digest == before.digest
                assert (await admin.get("/admin/state")).json()["policy"]["reload_error"]
                refused += 1
            else:
                good = _policy(number, replicas.urls)
                _write(file, good.encode())
                done = (await admin.post("/admin/reload", headers=authorized)).json()
                assert done["ok"], done
                assert gw.handler.policy.digest == hashlib.sha256(good.encode()).hexdigest()
                assert gw.handler.policy.generation > before.generation
                assert (await admin.get("/admin/state")).json()["policy"]["reload_error"] == ""
            await until(lambda asked=asked: len(answers) > asked + CLIENTS)
        last = gw.handler.policy
        stop.set()
        await asyncio.gather(*asking)
        assert not gw.broken.is_set()
    assert refused == RELOADS // 5
    assert last.digest == hashlib.sha256(_policy(RELOADS - 1, replicas.urls).encode()).hexdigest()
    assert {(answer.status, answer.whole) for answer in answers} == {(200, True)}
    seen = {(answer.headers["x-tailgate-tier"], _tokens(answer)) for answer in answers}
    assert seen == set(TIERS.items())


def _tokens(answer: Response) -> int:
    """Output tokens of an answer; for a stream, events with a token."""
    if answer.headers["content-type"] == "application/json":
        return answer.json()["usage"]["completion_tokens"]
    choices = [event["choices"][0] for event in answer.events if isinstance(event, dict)]
    return sum("role" not in choice["delta"] for choice in choices)


async def test_changed_policy_file_is_reloaded_automatically(tmp_path: Path, capture: Capture) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(_policy(0, [capture.url]))
    async with _reloadable(file) as gw:
        _write(file, _policy(1, [capture.url]).encode())
        await until(lambda: list(gw.handler.policy.tiers) == ["odd"])
        _write(file, b"pools: [")
        await until(lambda: gw.reloads.latest.error)
        assert list(gw.handler.policy.tiers) == ["odd"]
        _write(file, _policy(2, [capture.url]).encode())
        await until(lambda: list(gw.handler.policy.tiers) == ["even"])


async def test_requests_under_way_end_under_the_policy_they_began_with(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    """The new policy has another tier, another pool and another replica; the old ones finish their requests."""
    file = tmp_path / "policy.yaml"
    file.write_text(_policy(0, [capture.url]))
    capture.answer = lambda call: call.send(STREAM_HEAD + token("begin"))
    async with Capture() as other, _reloadable(file) as gw:
        streaming, waiting, later = [await connect(gw.url) for _ in range(3)]
        streaming.send(chat(f"x-api-key: {KEY}", stream=True))
        assert (await streaming.head())[1]["x-tailgate-tier"] == "even"
        begun = chat(f"x-api-key: {KEY}", "Expect: 100-continue")
        waiting.send(begun[:-5])  # its head is read under the old policy, its body under the new one
        assert (await waiting.head())[0] == 100

        _write(file, _policy(1, [other.url]).replace("main", "elsewhere").encode())
        assert (await gw.reloads.reload()).ok
        waiting.send(begun[-5:])
        for client in (waiting, later):
            answer = await client.ask(chat(f"x-api-key: {KEY}")) if client is later else await client.response()
            assert (answer.status, answer.headers["x-tailgate-pool"]) == (200, "elsewhere")
        capture.calls[0].send(token(" end", "stop") + DONE + LAST_CHUNK)
        assert b"[DONE]" in await streaming.reader.readuntil(b"0\r\n\r\n")
        assert len(other.calls) == 2
        await capture.until(lambda: all(connection.lost for connection in capture.traffic))


async def test_sighup_reloads_a_process(tmp_path: Path, capture: Capture) -> None:
    async with serving(tmp_path, _policy(0, [capture.url])) as served, httpx.AsyncClient() as admin:

        async def policy() -> dict:
            return (await admin.get(f"{served.admin_url}/admin/state")).json()["policy"]

        before = await policy()
        served.signal(signal.SIGHUP)
        async with asyncio.timeout(10):
            while (await policy())["generation"] == before["generation"]:
                pass
        (tmp_path / "policy.yaml").write_text("pools: [")
        served.signal(signal.SIGHUP)
        async with asyncio.timeout(10):
            while not (await policy())["reload_error"]:
                pass
        assert (await policy())["digest"] == before["digest"]
        served.signal(signal.SIGTERM)
        assert await served.exit_code() == 0
