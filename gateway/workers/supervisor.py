"""The supervisor of several processes: it owns the API's listening sockets, hands each connection to the relay with the
least work, and replaces processes that end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from urllib.parse import urlsplit

from gateway.api_side import CLOSE_GRACE_S
from gateway.core.policy import Policy
from gateway.driving.policy_bytes import to_bytes
from gateway.hash_seed import new_seed, seed_of
from gateway.listener import bound_at, tune, url_at
from gateway.opened_sockets import OpenedSockets
from gateway.policy.errors import PolicyErrors
from gateway.policy.load import load
from gateway.settings import Settings
from gateway.workers.child import ProcessSetup
from gateway.workers.control import Say
from gateway.workers.processes import CannotBeginError, ChildProcess

log = logging.getLogger("tailgate")

ACCEPTED_AT_ONCE = 64
"""At most this many connections are accepted in one turn of the loop."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
AGAIN_S = 1.0
"""Pause after the system has refused a connection or a socket, as in asyncio's own servers."""
NOTICE_S = 1.0
"""Before a relay is replaced, its answers say `Connection: close` for this long, so that clients go to the others."""
SPARE_AFTER_S = 2.0
"""So long after a decider has begun, its successor imports, so that it can follow at once."""
CLOSE_S = 30.0
"""Longest wait for the end of a drained decider: journal, usage and what else it writes have limits of their own."""
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Pauses before a process that ended is started again: longer each time that it ends before it is ready."""


class WorkerSupervisor:
    """Runs one decider and some relays."""

    def __init__(
        self, settings: Settings, policy: Policy, policy_path: Path | None, count: int, opened: OpenedSockets
    ) -> None:
        self._policy_bytes = b"" if policy_path is not None else to_bytes(policy)
        """The last policy in force; empty while there was none but that of the file."""
        self._policy_path = policy_path
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._sockets = list(opened.api) or bound_at(settings.host, settings.port)
        tune(self._sockets)
        for sock in self._sockets:
            sock.setblocking(False)
        self._admin_sockets = opened.admin
        port = self._sockets[0].getsockname()[1]
        per_relay = -(-settings.max_connections // count) if settings.max_connections else None
        self._settings = settings.model_copy(update={"port": port})
        self._relay_settings = self._settings.model_copy(
            update={"max_connections": per_relay, "max_receiving_bytes": settings.max_receiving_bytes // count}
        )
        self._started_unix_s = int(time.time())
        self._hash_seed = (seed_of(settings.state_dir) if settings.state_dir is not None else None) or new_seed()
        self._numbers = 0
        self._deciders = 0
        self._decider: ChildProcess | None = None
        self._spare: ChildProcess | None = None
        """The next decider, which has not begun."""
        self._relays: list[ChildProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._succession = asyncio.Lock()
        """Held while the next decider begins: a death and a replacement may come together."""
        self._replacement: asyncio.Task[None] | None = None
        self.admin_url = ""
        self.stop = asyncio.Event()
        """Set to drain and end."""
        self.broken = False
        """Whether the gateway ends because of a fault."""

    @property
    def url(self) -> str:
        """URL of the API."""
        settings = self._settings
        return url_at(settings.host, settings.port, is_tls=settings.ssl_certfile is not None)

    async def start(self) -> None:
        """Start all processes, and accept connections. Raises CannotBeginError."""
        await self._start_decider()
        await asyncio.gather(*[self._start_relay() for _ in range(self._count)])
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    def reload(self) -> None:
        """Have the policy file read again."""
        if self._decider is not None:
            self._decider.control.say(Say.RELOAD)

    def replace(self) -> None:
        """Replace every process by a new one, one after the other, without losing a request."""
        if self._replacement is None or self._replacement.done():
            self._replacement = self._start(self._replace_all())
        else:
            log.info("all processes are being replaced already")

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- processes

    def _keep_spare(self) -> None:
        if self._spare is None and not self._is_stopping:
            with suppress(CannotBeginError):  # the next decider is made when it is needed
                self._spare = self._made_decider()

    async def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.process.kill()
            spare.control.close()
            await asyncio.to_thread(spare.process.wait)

    def _made_decider(self) -> ChildProcess:
        """A decider that has not begun."""
        self._deciders += 1
        setup = ProcessSetup(
            self._settings.model_copy(update={"drain_notice_s": 0.0}),  # `drain` has given notice
            self._deciders,
            self._started_unix_s,
            self._hash_seed,
            self._policy_path,
            b"",
            tuple([sock.fileno() for sock in self._admin_sockets]),
        )
        return ChildProcess("gateway.workers.decider", setup, self._heard)

    async def _start_decider(self) -> None:
        decider, self._spare = self._spare or self._made_decider(), None
        decider.setup.policy = self._policy_bytes
        decider.begin()
        await decider.wait_ready()
        self._decider = decider
        self._loop.call_later(SPARE_AFTER_S, self._keep_spare)
        for relay in self._relays:
            self._join(relay, decider)
        self._start(self._watch_decider(decider))

    async def _start_relay(self) -> ChildProcess:
        self._numbers += 1
        setup = ProcessSetup(self._relay_settings, self._numbers, self._started_unix_s, self._hash_seed, None, b"")
        relay = ChildProcess("gateway.workers.relay", setup, self._heard)
        relay.begin()
        self._relays.append(relay)
        if self._decider is not None:
            self._join(relay, self._decider)
        try:
            await relay.wait_ready()
        except CannotBeginError:
            self._relays.remove(relay)
            raise
        self._start(self._watch_relay(relay))
        return relay

    def _join(self, relay: ChildProcess, decider: ChildProcess) -> None:
        """Give a relay and the decider a socket between them."""
        if decider is not self._decider:
            return
        try:
            one, other = socket.socketpair()
        except OSError as error:
            log.error("no socket from relay %d to the decider: %s; it is tried again", relay.number, error.strerror)
            self._loop.call_later(AGAIN_S, self._join, relay, decider)
            return
        decider.control.say(Say.RELAY, b"%d" % relay.number, [one.detach()])
        relay.control.say(Say.DECIDER, b"", [other.detach()])

    def _heard(self, child: ChildProcess, kind: Say, payload: bytes) -> None:
        if kind is Say.READY and payload:
            self.admin_url = payload.decode()
            # The next decider listens at the same port, also if this one took a free one.
            port = urlsplit(self.admin_url).port
            self._settings = self._settings.model_copy(update={"admin_port": port})
        elif kind is Say.POLICY:
            self._policy_bytes = payload
        elif kind is Say.STOP:
            self.stop.set()

    async def _watch_decider(self, decider: ChildProcess) -> None:
        await decider.ended.wait()
        status = await asyncio.to_thread(decider.process.wait)
        if decider is not self._decider or decider.is_leaving:
            return
        self._decider = None
        log.error("the decider has ended with status %d: answers go on, new requests wait for its successor", status)
        await self._next_decider()

    async def _next_decider(self) -> None:
        async with self._succession:
            if self._decider is None:
                await self._start_next_decider()

    async def _start_next_decider(self) -> None:
        for pause_s in PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                await self._start_decider()
            except CannotBeginError as failed:
                log.error("the next decider cannot begin: %s", failed)
            else:
                log.info("another decider serves")
                return
        self._give_up("decider")

    async def _watch_relay(self, relay: ChildProcess) -> None:
        await relay.ended.wait()
        status = await asyncio.to_thread(relay.process.wait)
        self._relays.remove(relay)
        if relay.is_leaving or self._is_stopping:
            return
        log.error(
            "relay %d has ended with status %d: its connections are lost, another is started", relay.number, status
        )
        for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
            await asyncio.sleep(pause_s)
            if self._is_stopping:
                return
            try:
                await self._start_relay()
            except CannotBeginError as failed:
                log.error("the next relay cannot begin: %s", failed)
                if pause_s == PAUSES_S[-1] and not self._relays:
                    break
            else:
                return
        self._give_up("relay")

    def _give_up(self, kind: str) -> None:
        log.critical("no %s can be started: the gateway ends", kind)
        self.broken = True
        self.stop.set()

    async def _replace_all(self) -> None:
        log.info("all processes are replaced, one after the other")
        try:
            if self._policy_path is not None:
                await asyncio.to_thread(load, self._policy_path)  # the next decider must be able to begin
            await self._drop_spare()  # it may be of the old version
            self._keep_spare()
            await self._replace_relays()
        except (PolicyErrors, CannotBeginError) as failed:
            log.error("processes that are not replaced serve on: %s", failed)
        else:
            decider, self._decider = self._decider, None
            if decider is not None:
                decider.control.say(Say.DRAIN)
                await decider.ended.wait()
            await self._next_decider()
            log.info("all processes are replaced")

    async def _replace_relays(self) -> None:
        for old in list(self._relays):
            if old.ended.is_set():
                continue  # it was killed meanwhile: its successor is new already
            await self._start_relay()
            old.is_leaving = True
            old.control.say(Say.LEAVE)
            await asyncio.sleep(NOTICE_S)
            old.control.say(Say.DRAIN)
            await old.ended.wait()

    # ---- connections

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if (relay := self._least_busy()) is None:  # clients wait for the next one in the backlog
                break
            try:
                client, _ = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.warning("a connection could not be accepted: %s", error.strerror)
                if error.errno not in NO_ROOM:
                    return
                log.warning("the next waits %g s: raise the limit of open files, or end what uses them", AGAIN_S)
                break
            relay.give(client)
        else:
            return
        self._loop.remove_reader(sock.fileno())
        self._loop.call_later(AGAIN_S, self._accept_again, sock)

    def _accept_again(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:  # else the gateway ends
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    def _least_busy(self) -> ChildProcess | None:
        usable = [relay for relay in self._relays if relay.serves]
        in_time = [relay for relay in usable if not relay.hangs] or usable
        return min(in_time, key=lambda relay: relay.work, default=None)

    # ---- the end

    async def drain(self) -> None:
        """Announce the end, stop accepting, let requests finish until the deadline, and end all processes."""
        self._is_stopping = True
        await self._drop_spare()
        children = [*self._relays, *([self._decider] if self._decider is not None else [])]
        for child in children:
            child.control.say(Say.LEAVE)
        notice_s, deadline_s = self._settings.drain_notice_s, self._settings.drain_deadline_s
        if notice_s and not self.broken:
            log.info("not ready: requests are still accepted for %.0f s", notice_s)
            await asyncio.sleep(notice_s)
        log.info("draining: at most %.0f s for requests under way", deadline_s)
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        for relay in self._relays:
            relay.control.say(Say.DRAIN)
        shut = self._loop.call_later(deadline_s, self._shut)
        if ended := [asyncio.ensure_future(relay.ended.wait()) for relay in self._relays]:
            await asyncio.wait(ended, timeout=deadline_s + 2 * CLOSE_GRACE_S)
        shut.cancel()
        if self._decider is not None:
            self._decider.is_leaving = True
            self._decider.control.say(Say.DRAIN)
            await asyncio.wait([asyncio.ensure_future(self._decider.ended.wait())], timeout=CLOSE_S)
            children.append(self._decider)  # perhaps another than at the beginning
        for child in children:
            if child.process.poll() is None and not child.ended.is_set():
                child.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(child.process.wait)
            child.control.close()

    def _shut(self) -> None:
        if self._decider is not None:
            self._decider.control.say(Say.SHUT)
