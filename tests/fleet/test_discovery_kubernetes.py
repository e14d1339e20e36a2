"""EndpointSlices are listed and watched, through all that an API server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.core.pool_spec import Discovery, KubernetesSource
from gateway.fleet.discovery import kubernetes
from gateway.fleet.discovery.kubernetes import KubernetesFollower, backoff_after
from gateway.fleet.discovery.source import Listing, SourceTools

from .api_server import ApiServer, api_server, endpoint
from .replicas import until


class Followed:
    """A follower under way, and what it told."""

    def __init__(self, server: ApiServer, folder: Path, port: str = "") -> None:
        self.token = folder / "token"
        self.token.write_text("first\n")
        source = KubernetesSource("vllm", "llm", port, (("zone", "a"),), server.url, str(self.token))
        self.told: list[Listing] = []
        self.failed: list[str] = []
        tools = SourceTools(self.told.append, self.failed.append)
        self.follower = KubernetesFollower(source, Discovery((source,)), tools)

    @property
    def addresses(self) -> set[str]:
        return {url.removeprefix("http://") for url in self.told[-1].urls} if self.told else {"nothing told"}


@asynccontextmanager
async def following(followed: Followed) -> AsyncIterator[Followed]:
    task = asyncio.create_task(followed.follower.run())
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "BACKOFF_S", 0.01)
    monkeypatch.setattr(kubernetes, "MAX_BACKOFF_S", 0.05)


async def test_slices_of_a_service_are_listed_in_pages_and_their_changes_followed(
    server: ApiServer, tmp_path: Path
) -> None:
    server.page = 2
    for number in range(5):
        server.put(f"vllm-{number}", endpoint(f"10.0.0.{number}", ready=True))
    async with following(Followed(server, tmp_path)) as followed:
        await until(lambda: followed.addresses == {f"10.0.0.{number}:8000" for number in range(5)})
        assert server.lists == 1
        await until(lambda: server.watching == 1)
        server.put("vllm-0", endpoint("10.0.0.7", ready=True), endpoint("10.0.0.8"))
        server.delete("vllm-1")
        expected = {"10.0.0.7:8000", "10.0.0.8:8000", *(f"10.0.0.{number}:8000" for number in (2, 3, 4))}
        await until(lambda: followed.addresses == expected)
        assert server.lists == 1
        assert server.selectors == {"kubernetes.io/service-name=vllm,zone=a"}
        assert not followed.failed


async def test_pods_that_end_are_not_ready_or_are_evicted_are_no_replicas(server: ApiServer, tmp_path: Path) -> None:
    server.put(
        "vllm-0",
        endpoint("10.0.0.1", "one", ready=True),
        endpoint("10.0.0.2", "two", ready=False),
        endpoint("10.0.0.3", "three", ready=False, terminating=True),
        endpoint(None, "four", ready=True),
    )
    async with following(Followed(server, tmp_path)) as followed:
        await until(lambda: followed.addresses == {"10.0.0.1:8000"})
        assert followed.told[-1].ending == {"http://10.0.0.3:8000"}
        await until(lambda: server.watching == 1)
        server.put("vllm-0", endpoint(None, "one", ready=True))  # as after an eviction
        await until(lambda: followed.addresses == set())


@pytest.mark.parametrize("port", ["", "http"])
async def test_service_that_has_lost_its_last_pod_has_no_replicas_until_it_has_one_again(
    server: ApiServer, tmp_path: Path, port: str
) -> None:
    server.put("vllm-0", endpoint("10.0.0.1", "one", ready=True))
    async with following(Followed(server, tmp_path, port)) as followed:
        await until(lambda: server.watching == 1)
        server.put("vllm-0")
        await until(lambda: followed.addresses == set())
        server.put("vllm-0", endpoint("10.0.0.2", "two", ready=True))
        await until(lambda: followed.addresses == {"10.0.0.2:8000"})
        assert server.lists == 1
        assert not followed.failed


async def test_pod_with_addresses_of_both_families_in_several_slices_is_one_replica(
    server: ApiServer, tmp_path: Path
) -> None:
    server.put("vllm-6", endpoint("fd00::1", "one"), endpoint("fd00::2", "two"), kind="IPv6")
    server.put("vllm-4", endpoint("10.0.0.1", "one"))
    server.put("vllm-mirror", endpoint("10.0.0.1", "one"))
    async with following(Followed(server, tmp_path)) as followed:
        await until(lambda: followed.addresses == {"10.0.0.1:8000", "[fd00::2]:8000"})


async def test_version_that_is_gone_is_listed_again_after_an_event_and_after_a_status(
    server: ApiServer, tmp_path: Path
) -> None:
    server.put("vllm-0", endpoint("10.0.0.1"))
    async with following(Followed(server, tmp_path)) as followed:
        await until(lambda: server.watching == 1)
        server.forget()  # an event, and then a status for a watch from where it was
        await until(lambda: server.lists == 2 and server.watching >= 1)
        server.put("vllm-0", endpoint("10.0.0.2"))
        await until(lambda: followed.addresses == {"10.0.0.2:8000"})
        server.version += 1
        server.oldest = server.version
        server.disconnect()
        await until(lambda: server.lists == 3)
        assert followed.addresses == {"10.0.0.2:8000"}


async def test_version_of_a_bookmark_saves_a_new_list(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "GRACE_S", 0.2 - kubernetes.WATCH_S)
    server.put("vllm-0", endpoint("10.0.0.1"))
    async with following(Followed(server, tmp_path)) as followed:
        await until(lambda: server.watching == 1)
        server.bookmark()
        server.oldest = server.version
        await until(lambda: server.watches >= 2)  # the watch hung, and was given up
        assert any("ReadTimeout" in reason for reason in followed.failed)
        await until(lambda: server.watching >= 1)


async def test_server_that_disconnects_or_refuses_removes_nothing_and_is_asked_again(
    server: ApiServer, tmp_path: Path
) -> None:
    server.put("vllm-0", endpoint("10.0.0.1"))
    async with following(Followed(server, tmp_path)) as followed:
        await until(lambda: server.watching == 1)
        server.status = 403
        server.disconnect()
        await until(lambda: "needs get, list and watch on endpointslices" in str(followed.failed))
        server.put("vllm-0", endpoint("10.0.0.2"))
        server.status = 200
        await until(lambda: followed.addresses == {"10.0.0.2:8000"})
        assert all(listing.urls for listing in followed.told)


async def test_watch_that_ends_at_once_is_named_and_not_asked_again_without_a_pause(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "BACKOFF_S", 60.0)
    monkeypatch.setattr(kubernetes, "MAX_BACKOFF_S", 60.0)
    server.ends_watches = True
    server.put("vllm-0", endpoint("10.0.0.1"))
    async with following(Followed(server, tmp_path)) as followed:
        await until(lambda: bool(followed.failed))
        assert "a watch ended at once" in followed.failed[0]
        assert server.watches == 1
        assert followed.addresses == {"10.0.0.1:8000"}


def test_pauses_grow_while_tries_end_at_once_as_without_the_right_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "BACKOFF_S", 1.0)
    monkeypatch.setattr(kubernetes, "MAX_BACKOFF_S", 30.0)
    pauses = [0.0]
    for lasted_s in (0.1,) * 7 + (31.0, 0.1):
        pauses.append(backoff_after(lasted_s, pauses[-1]))
    assert pauses[1:] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 1.0, 2.0]


async def test_token_is_read_again_for_each_request(server: ApiServer, tmp_path: Path) -> None:
    server.put("vllm-0", endpoint("10.0.0.1"))
    async with following(Followed(server, tmp_path)) as followed:
        await until(lambda: server.watching == 1)
        followed.token.write_text("second\n")
        server.disconnect()
        await until(lambda: "second" in server.tokens)
        assert server.tokens[:2] == ["first", "first"]
        await until(lambda: server.tokens.count("second") >= 2 and server.watching == 1)
        followed.token.unlink()
        server.disconnect()
        await until(lambda: f"{followed.token} cannot be read" in str(followed.failed))


@pytest.mark.parametrize("token", [b"secr\xc3\xa9t", b"secr\xff", b"secret\nsecret", b""])
async def test_token_file_without_a_token_is_named_and_its_text_is_not(
    server: ApiServer, tmp_path: Path, token: bytes
) -> None:
    followed = Followed(server, tmp_path)
    followed.token.write_bytes(token)
    async with following(followed):
        await until(lambda: bool(followed.failed))
        assert f"{followed.token} has no token: write one line of printable ASCII" in followed.failed[0]
        assert "secr" not in str(followed.failed)


@pytest.mark.parametrize(("port", "address"), [("http", "10.0.0.1:8000"), ("9000", "10.0.0.1:9000")])
async def test_port_is_chosen_by_name_or_number(server: ApiServer, tmp_path: Path, port: str, address: str) -> None:
    server.put("vllm-0", endpoint("10.0.0.1"))
    async with following(Followed(server, tmp_path, port)) as followed:
        await until(lambda: followed.addresses == {address})


async def test_port_that_the_service_does_not_have_is_named(server: ApiServer, tmp_path: Path) -> None:
    server.put("vllm-0", endpoint("10.0.0.1"))
    async with following(Followed(server, tmp_path, "metrics")) as followed:
        await until(lambda: bool(followed.failed))
        assert followed.failed[0] == "service vllm: its ports are http: write the name or number of one as `port`"


async def test_process_outside_of_a_cluster_is_told_to_name_the_server() -> None:
    failed: list[str] = []
    source = KubernetesSource("vllm")
    follower = KubernetesFollower(source, Discovery((source,)), SourceTools(lambda listing: None, failed.append))
    task = asyncio.create_task(follower.run())
    await until(lambda: bool(failed))
    task.cancel()
    assert "KUBERNETES_SERVICE_HOST is not set: write `server`" in failed[0]
