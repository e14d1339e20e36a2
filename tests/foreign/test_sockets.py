"""Some scripts over real sockets, with the gateway's own event loop, compiled or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
import uvloop

from gateway.app import Gateway
from gateway.settings import Settings
from tests.foreign.client import Answer, read_answer, request
from tests.foreign.play import judged
from tests.foreign.script import CHAT, Script, Then
from tests.foreign.servers import FLEET
from tests.foreign.world import SOUND_STREAM, policy_of
from tests.scorecard import capture
from tests.scorecard.capture import Answer as Sent
from tests.scorecard.capture import Capture

DEADLINE_S = 20.0
THEN = {Then.KEEP: capture.Then.KEEP, Then.CLOSE: capture.Then.CLOSE, Then.RESET: capture.Then.RESET}
SERVERS = ("any http", "any failure", "responses")
TAKEN = [name for name, script in FLEET.items() if name.startswith(SERVERS) and script.then is not Then.SILENCE]


def pytest_asyncio_loop_factories() -> Mapping[str, object]:
    """The gateway's own event loop."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def replica() -> AsyncIterator[Capture]:
    """A replica that sends given bytes."""
    async with Capture() as capture:
        yield capture


async def ask(port: int, data: bytes) -> Answer | None:
    """Send one request on a new connection. Returns the bytes up to the end of the answer or of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = b""
    try:
        async with asyncio.timeout(DEADLINE_S):
            writer.write(data)
            while piece := await reader.read(2**18):
                raw += piece
                answer = read_answer(raw)
                if answer is not None and answer.framed:
                    return answer
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return read_answer(raw)


@pytest.mark.parametrize("aggregate", [False, True], ids=["streamed", "aggregated"])
async def test_foreign_answers_over_real_sockets_come_to_their_right_ends(replica: Capture, aggregate: bool) -> None:
    port = int(replica.url.rpartition(":")[2])
    policy = policy_of([port], aggregate, failures=1_000_000)
    wrong: dict[str, list[str]] = {}
    async with Gateway(Settings(port=0, admin_port=0, drain_deadline_s=0.0), policy) as gateway:
        api = int(gateway.url.rpartition(":")[2])

        async def play(script: Script, said: str) -> list[str]:
            replica.answer = lambda call: Sent(script.data, THEN[script.then])
            stream = script.stream and not aggregate
            answer = await ask(api, request(script.path, stream, said, script.choices))
            found = judged(script, answer, aggregate)
            replica.answer = lambda call: Sent(SOUND_STREAM)
            after = await ask(api, request(CHAT, True, f"after {said}"))
            if after is None or after.status != 200 or b"[DONE]" not in after.body:
                found.append(f"who comes next is not served: {after}")
            return found

        for name in TAKEN:
            script = FLEET[name]
            if found := await play(script, name):
                wrong[name] = found
    assert wrong == {}
