"""A relay: it owns connections of clients and replicas. The decider, another process, takes the decisions."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import cast

from gateway.api_side import CLOSE_GRACE_S, ApiSide
from gateway.core.policy import Policy
from gateway.core.results import Callback
from gateway.driving import frames
from gateway.driving.channel import Channel, Frame
from gateway.driving.policy_bytes import policy_from_bytes
from gateway.driving.relay_meter import RelayMeter
from gateway.driving.remote_driver import RemoteDriver
from gateway.fleet.board import ModelBoard
from gateway.fleet.models_json import ModelCard
from gateway.listener import Listener
from gateway.observe.metrics.lag import LoopLag
from gateway.proxy.callers import callers_of
from gateway.sweeper import Sweeper
from gateway.tls import BadFile
from gateway.workers.child import Ears, ProcessSetup, run
from gateway.workers.control import Control, Say

log = logging.getLogger("tailgate")


class RemoteLists:
    """The models of servers, as the decider reads them."""

    def __init__(self, driver: RemoteDriver) -> None:
        self._driver = driver
        self._fresh: set[str] = set()
        """Servers whose list was asked for since a connection to them was lost."""

    def lost(self, server: str) -> None:
        """A connection to `server` was lost or refused."""
        self._fresh.discard(server)
        self._driver.tell((frames.LOST, server))

    def is_list_old(self, server: str) -> bool:
        """Whether the models of `server` must be asked for before it gets a request on a new connection."""
        return server not in self._fresh

    async def fresh_list(self, server: str) -> frozenset[str] | None:
        """Names that `server` takes, read again if the last list is old; None if they are unknown."""
        self._fresh.add(server)  # a connection that is lost meanwhile takes it away again
        names = await self._driver.ask("models", server)
        return None if names is None else frozenset(cast("list[str]", names))


class Relay:
    """One relay process."""

    def __init__(self, setup: ProcessSetup, control: Control) -> None:
        self._settings = setup.settings
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._meter = RelayMeter(self._tell)
        self._driver = RemoteDriver(setup.number, self._meter.bug, self._loop, time.monotonic)
        self._board = ModelBoard(setup.started_unix_s)
        self._unfit: frozenset[str] = frozenset()
        self._api: ApiSide | None = None
        self._listener: Listener | None = None
        self._serving: asyncio.Task[None] | None = None
        self._sweeper: Sweeper | None = None
        self._lag = LoopLag(time.monotonic, self._tell_supervisor)
        self._told = -1, -1
        """Connections and requests, as the supervisor was told last."""
        self._channel: Channel | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_broken = False
        """Whether a part that must always run has stopped."""
        self.over = asyncio.Event()
        """Set when everything under way has ended after DRAIN."""

    def on_message(self, kind: Say, payload: bytes, files: list[int]) -> None:
        """Do what the supervisor says."""
        if kind is Say.CLIENT:
            self._told = -1, -1  # the supervisor waits for a word
            self._accept(socket.socket(fileno=files[0]))
        elif kind is Say.DECIDER:
            self._start(self._connect(socket.socket(fileno=files[0])))
        elif kind is Say.LEAVE and self._api is not None:
            self._api.handler.leaving = True
        elif kind is Say.DRAIN:
            self._start(self._drain())

    def orphaned(self) -> None:
        """The supervisor is gone: end soon."""
        self._start(self._drain())

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        if isinstance(error, BadFile):
            self._control.say(Say.FAILED, f"1 {error}".encode())
        else:
            log.critical("a part of this relay has stopped, a bug of the gateway: it ends", exc_info=error)
        self.is_broken = True
        self.over.set()

    def _tell(self, frame: Frame) -> None:
        self._driver.tell(frame)

    # ---- the decider

    async def _connect(self, sock: socket.socket) -> None:
        if self._channel is not None:
            self._channel.close()
            self._driver.disconnected()  # the end of the last decider may be seen only later
        channel = self._channel = Channel(self._loop, self._on_frames, self._on_lost)
        await self._loop.create_unix_connection(lambda: channel, sock=sock)

    def _on_lost(self) -> None:
        if self._channel is not None and not self._channel.is_open:
            self._driver.disconnected()

    def _on_frames(self, told: list[list[object]]) -> None:
        for frame in told:
            kind = cast(int, frame[0])
            if kind <= frames.ABORT:
                self._driver.on_command(frame)
                continue
            try:
                self._on_news(kind, frame)
            except Exception as error:  # noqa: BLE001 - else the loop would close the channel
                if self._driver.channel is not None:
                    self._driver.supervisor.caught(Callback.WATCH, error)
                    continue
                self._broke(error)  # without the policy of its decider it cannot serve; another relay may, later

    def _on_news(self, kind: int, frame: list[object]) -> None:
        if kind == frames.FACTS:
            self._driver.is_alive, self._driver.is_suspicious = cast(bool, frame[1]), cast(bool, frame[2])
            self._unfit = frozenset(cast("list[str]", frame[3]))
            self._driver.engine_restarts = cast("dict[str, int]", frame[4])
        elif kind == frames.ANSWER:
            self._driver.answered(cast(int, frame[1]), frame[2])
        elif kind == frames.LIMITED:
            tenant, tier = cast(str, frame[1]), cast(str, frame[2])
            self._driver.limited(tenant, tier, frames.reason_of(frame[3]), cast(float, frame[4]))
        elif kind == frames.CARDS:
            rows = cast("list[tuple[str, int | None, str | None]] | None", frame[2])
            if rows is None:
                self._board.forget(cast(str, frame[1]))
            else:
                self._board.put(cast(str, frame[1]), tuple(ModelCard(*row) for row in rows))
        elif kind == frames.STORED and self._api is not None:
            self._api.services.responses.add(cast("list[object]", frame[1]))
        elif kind == frames.POLICY:
            self._meter.configure(cast("list[float]", frame[2]))
            self._configure(policy_from_bytes(cast(bytes, frame[1])))

    # ---- the API

    def _configure(self, policy: Policy) -> None:
        api = self._api
        if api is None:
            api = self._begin(policy)
        else:
            api.upstreams.configure(policy.pools.values())
        api.configure(policy, callers_of(policy))
        channel = self._channel
        if channel is not None and self._driver.channel is None:
            self._driver.connect(channel, policy)

    def _begin(self, policy: Policy) -> ApiSide:
        lists = RemoteLists(self._driver)
        api = ApiSide(
            self._settings,
            policy,
            self._driver,
            self._meter,
            self._meter.copied,
            self._board,
            lists,
            lambda name: name in self._unfit,
        )
        api.upstreams.configure(policy.pools.values())  # may raise `BadFile`: then the relay never becomes ready
        self._api = api
        api.services.responses.on_kept = lambda row: self._tell((frames.STORED, row))
        self._listener = api.listener()
        self._sweeper = Sweeper(
            self._driver.supervisor, time.monotonic, (api.limits,), (*api.steps, self._meter.flush, self._tell_loads)
        )
        self._serving = self._loop.create_task(self._listener.serve(sockets=[]))
        self._start(self._sweeper.run())
        if self._settings.ssl_certfile is not None:
            self._start(self._listener.watch_certificate(self._settings.ssl_certfile, self._settings.ssl_keyfile))
        self._start(self._lag.run())
        self._start(self._say_ready(self._listener))
        return api

    async def _say_ready(self, listener: Listener) -> None:
        while not listener.started:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.005)
        self._control.say(Say.READY)

    def _accept(self, sock: socket.socket) -> None:
        if self._listener is None:
            sock.close()
            return
        sock.setblocking(False)
        self._start(self._serve(self._listener, sock))

    async def _serve(self, listener: Listener, sock: socket.socket) -> None:
        # A client that left before its turn, or whose TLS handshake fails, is no news.
        with suppress(OSError, TimeoutError):
            try:
                await self._loop.connect_accepted_socket(listener.protocol, sock, ssl=listener.config.ssl)
            except (ValueError, RuntimeError) as error:
                self._driver.supervisor.caught(Callback.CLIENT, error)

    def _tell_supervisor(self, _now: float) -> None:
        load = (0 if self._api is None else self._api.limits.connections), self._driver.under_way
        if load != self._told:
            self._told = load
            self._control.say(Say.LOAD, b"%d %d" % load)

    def _tell_loads(self, now: float) -> None:
        api = self._api
        if api is not None:
            loads = api.limits.connections, self._driver.under_way, self._lag.read(), api.held_s(now), os.getpid()
            self._tell((frames.LOADS, *loads))

    async def _drain(self) -> None:
        api, listener, serving = self._api, self._listener, self._serving
        if api is None or listener is None or serving is None:
            self.over.set()
            return
        api.handler.leaving = api.handler.draining = True
        listener.should_exit = True
        deadline_s = self._settings.drain_deadline_s
        deadline = self._loop.call_later(deadline_s, self._driver.shut)
        cut = self._loop.call_later(deadline_s + CLOSE_GRACE_S, api.limits.abort_all)
        await asyncio.wait([serving])
        deadline.cancel()
        cut.cancel()
        await api.aclose()
        if self._channel is not None:
            self._channel.close()
        self._driver.close()
        self.over.set()


async def _main(setup: ProcessSetup, control: Control, ears: Ears) -> int:
    relay = Relay(setup, control)
    ears.begin(relay.on_message, relay.orphaned)
    await relay.over.wait()
    return 1 if relay.is_broken else 0


if __name__ == "__main__":
    run(_main)
