"""The store (Redis or Valkey) over which gateways in front of the same replicas tell each other their loads.

One task owns the one connection. Up to 40 times a second it writes this gateway's load and reads those of the others,
in one round trip with a timeout. No request ever waits for it. While the store is away, loads of the others age out,
and the gateway decides by its own bookings alone.

One hash has all loads, a field for each gateway. Only the controller's own clock decides what is stale, so clocks of
machines may differ.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import thread_time
from typing import Annotated, Any, Final, Protocol

import msgspec

from gateway.core.sample import GatewayLoad, PoolLoad, ReplicaLoad
from gateway.driving.leases import LEASE_S, ROUND_S, LeaseCall, Leases
from gateway.observe.sources import StoreView
from gateway.store_client import StoreClients, StoreError, reason_of

log = logging.getLogger("tailgate")

INTERVAL_S: Final = 0.025
"""Seconds between two rounds while this gateway has requests. The experiment `gateways` chose it."""
SLOW_S: Final = 0.1
"""The same without requests, and at most, however large the fleet is. Others hear of this interval: a stall of a few
rounds is no silence.
"""
MAX_SHARE: Final = 0.05
"""Rounds of a large fleet are further apart, up to `SLOW_S`: to write and read loads may take this part of a core."""
TIMEOUT_S: Final = 0.25
"""Longest time of one round, connecting included."""
RETRY_S: Final = 1.0
"""Seconds between two rounds while the store is away."""
FAILED_ROUNDS: Final = 2
"""The store is away after so many rounds in a row have failed: one late answer is no outage."""
KEY: Final = "{tailgate}:loads"
KEEP_S: Final = 60
"""The hash expires after this long without a write, and a field is deleted that did not change for as long."""
_HEARD_S: Final = 3.0 * SLOW_S
"""The second value of a gateway is the first that counts. It comes within this time."""
VERSION: Final = 1

_MAX: Final = 2**53
"""Beyond this, sums of counts and floats are no longer exact, and may overflow."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX)]
_Amount = Annotated[float, msgspec.Meta(ge=0.0, le=_MAX)]
_Replica = tuple[str, _Count, _Count, _Count, _Count, _Amount, _Amount]
_Pool = tuple[str, tuple[tuple[str, _Count], ...], tuple[tuple[int, _Count], ...]]
_Ejected = tuple[tuple[str, str], ...]
_Interval = Annotated[float, msgspec.Meta(gt=0.0, le=KEEP_S)]
_Value = tuple[int, int, _Interval, tuple[_Replica, ...], tuple[_Pool, ...], _Ejected]
"""The value of a field: version of the form, number of the round, interval, and the fields of all loads in their order.
Dataclasses are not given to msgspec, because compiled ones keep only some annotations.
"""


class _Pipeline(Protocol):
    def execute_command(self, *args: str | float) -> object: ...
    def hset(self, name: str, key: str, value: bytes) -> object: ...
    def expire(self, name: str, seconds: int) -> object: ...
    def hgetall(self, name: str) -> object: ...
    def execute(self, raise_on_error: bool = True) -> Awaitable[list[Any]]: ...


def load_to_bytes(load: GatewayLoad, number: int) -> bytes:
    """The load as other gateways read it. `number`: of the round, so that an old value is not taken for a new one."""
    replicas = [
        (
            each.name,
            each.in_flight,
            each.unread_prompts,
            each.unread_tokens,
            each.held_tokens,
            each.growth_tokens,
            each.prompt_tokens_per_s,
        )
        for each in load.replicas
    ]
    pools = [(each.name, each.by_tier, each.waiting) for each in load.pools]
    return msgspec.json.encode([VERSION, number, load.interval_s, replicas, pools, load.ejected])


def load_from_bytes(value: bytes) -> tuple[int, GatewayLoad]:
    """(number of the round, load). Raises StoreError for what no gateway of this version has written."""
    try:
        version, number, interval_s, replicas, pools, ejected = msgspec.json.decode(value, type=_Value)
    except msgspec.MsgspecError as error:
        raise StoreError(f"a value cannot be read: {error}") from None
    if version != VERSION:
        raise StoreError(f"a value has version {version}, this gateway reads {VERSION}")
    of_replicas = tuple([ReplicaLoad(*each) for each in replicas])
    return number, GatewayLoad(interval_s, of_replicas, tuple([PoolLoad(*each) for each in pools]), ejected)


class Store:
    """The connection to the store, and the task that tells and reads loads."""

    def __init__(
        self,
        url: str,
        read: Callable[[float], GatewayLoad],
        told: Callable[[str, GatewayLoad], None],
    ) -> None:
        """`read`: returns this gateway's load, for an interval. `told`: takes the name of another gateway and its load.
        Limits are shared once `leases` is set.

        Raises StoreError if the extra `fleet` is not installed, or the URL is none.
        """
        self._clients = StoreClients(url, TIMEOUT_S)
        from redis.exceptions import NoScriptError, RedisError  # imported here, because only `--store` needs it

        self._errors: tuple[type[Exception], ...] = (RedisError, OSError, TimeoutError, StoreError)
        self._no_script: type[Exception] = NoScriptError
        self.address = self._clients.address
        self._client: Any = None
        self._read, self._told = read, told
        self.name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        """The field of this gateway. A process never takes over the name of another."""
        self.leases: Leases | None = None
        self._number = 0
        """Rounds that began."""
        self._listened_s = self._heard_at = 0.0
        """Seconds for which the store has answered: outages do not count. Then: time of its last answer."""
        self._seen: dict[str, tuple[int, float]] = {}
        """By field: the number of the last round of that gateway, and `_listened_s` when it came."""
        self._lease_at = 0.0
        """Time of the next round that carries limits."""
        self._unread: dict[str, str] = {}
        """By field that cannot be read: why."""
        self._unanswered = ""
        """Text of the last failure of a single command."""
        self._failures = self._in_a_row = 0
        self._error = ""
        self._is_away = self._is_explained = False
        self._begun = asyncio.Event()

    async def begin(self) -> None:
        """Wait until the loads of all others are known, or the store has failed: one second at most."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._begun.wait(), RETRY_S)

    async def ask(self, what: str, key: str, *more: bytes | str | int) -> object:
        """The answer to one command about a key, on a connection of its own; None if it fails or the store is away."""
        if self._is_away:
            return None
        client = self._clients.connect()
        answer: object = None
        try:
            async with asyncio.timeout(RETRY_S):
                answer = await client.execute_command(what, key, *more)
        except self._errors as error:
            failed = f"{what} {key}: {reason_of(error)}"
            if failed != self._unanswered:
                log.warning("store: no answer to %.200s", failed)
                self._unanswered = failed
        finally:
            await self._end(client)
        _end_if_cancelled()
        return answer

    def view(self) -> StoreView:
        """The state of the store, for the admin pages and metrics."""
        heard = 0 if self._is_away else len(self.others())
        of_limit = "" if self.leases is None else self.leases.error
        return StoreView(self.address, heard, self._failures, self._error, of_limit)

    def others(self, seconds: float = _HEARD_S) -> list[str]:
        """Names of the gateways that told their load in the last seconds for which the store answered."""
        return sorted(name for name, (_, at) in self._seen.items() if self._listened_s - at < seconds)

    async def run(self) -> None:
        """Tell and read loads until cancelled. The field of this gateway is deleted then."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                began, interval_s = loop.time(), SLOW_S
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        interval_s = await self._round(began)
                except self._errors as error:
                    await self._failed(error)
                else:
                    self._succeeded()
                _end_if_cancelled()
                pause_s = RETRY_S if self._is_away else interval_s
                await asyncio.sleep(max(0.0, began + pause_s - loop.time()))
        finally:
            await self._leave()

    async def _round(self, now: float) -> float:
        """Write the own load, and read all others. Seconds from this round to the next."""
        cpu_s = -thread_time()
        if self._client is None:
            self._client = self._clients.connect()
        self._number += 1
        load = self._read(SLOW_S)
        pipeline: _Pipeline = self._client.pipeline(transaction=False)
        stale = [name for name, (_, at) in self._seen.items() if self._listened_s - at > KEEP_S]
        if stale:
            pipeline.execute_command("HDEL", KEY, *stale)
        pipeline.hset(KEY, self.name, load_to_bytes(load, self._number))
        pipeline.expire(KEY, KEEP_S)
        pipeline.hgetall(KEY)
        calls: list[LeaseCall] = []
        if self.leases is not None and now >= self._lease_at:
            self._lease_at = now + ROUND_S
            calls = list(self.leases.calls(1 + len(self.others(LEASE_S))))  # the leases of those may still be good
        for call in calls:
            pipeline.execute_command(*call.command(whole=False))
        cpu_s += thread_time()
        answers = await pipeline.execute(raise_on_error=False)  # raised errors would repeat the whole command
        cpu_s -= thread_time()
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, self._no_script):
                raise answer
        self._listened_s += min(now - self._heard_at, SLOW_S)
        self._heard_at = now
        for name in stale:
            del self._seen[name]
        of_calls = len(answers) - len(calls)
        values = {field.decode("utf-8", "replace"): value for field, value in answers[of_calls - 1].items()}
        for name, value in values.items():
            self._take(name, value)
        self._unread = {name: why for name, why in self._unread.items() if name in values}
        cpu_s += thread_time()
        for call, answer in zip(calls, answers[of_calls:], strict=True):
            await self._leased(call, answer)
        return min(SLOW_S, max(INTERVAL_S, cpu_s / MAX_SHARE)) if load.replicas else SLOW_S

    async def _leased(self, call: LeaseCall, answer: object) -> None:
        """Take the leases that the store granted. A store that has forgotten the script gets it again."""
        assert self.leases is not None
        if isinstance(answer, self._no_script):
            answer = await self._client.execute_command(*call.command(whole=True))
        if not isinstance(answer, list) or len(answer) != len(call.places) + 2:
            raise StoreError("its answer to the script of limits cannot be read")
        self.leases.take(call, answer)

    def _take(self, name: str, value: bytes) -> None:
        """Take the value of one field, if it is another gateway's and new."""
        if name == self.name:
            return
        try:
            number, load = load_from_bytes(value)
        except StoreError as error:
            if str(error) != self._unread.get(name):
                self._unread[name] = str(error)
                log.warning("store: the load of gateway %.80s is ignored: %.200s", name, error)
            return
        known = self._seen.get(name)
        if known is None or known[0] != number:
            self._seen[name] = number, self._listened_s
            if known is not None:
                self._told(name, load)  # the first value may be of a gateway that is gone

    def _succeeded(self) -> None:
        if self._is_away:
            log.info("store: %s is back", self.address)
        self._is_away, self._error, self._in_a_row = False, "", 0
        if self._listened_s >= _HEARD_S:
            self._begun.set()

    async def _failed(self, error: Exception) -> None:
        """Note why a round failed, and drop the connection: half an answer may be on it. An outage is logged once, and
        again if its reason is known only later.
        """
        self._failures += 1
        self._in_a_row += 1
        await self._close()
        if self._in_a_row < FAILED_ROUNDS:
            return
        reason = reason_of(error)
        self._error = reason or f"no answer within {TIMEOUT_S:g} s"
        if not self._is_away or (reason and not self._is_explained):
            self._is_explained = bool(reason)
            log.error(
                "store: %s is away (%.200s); this gateway goes on alone and tries again every %g s",
                self.address,
                self._error,
                RETRY_S,
            )
        self._is_away = True
        self._begun.set()
        if self.leases is not None:
            self.leases.give_up()

    async def _close(self) -> None:
        client, self._client = self._client, None
        await self._end(client)

    async def _end(self, client: Any) -> None:
        if client is not None:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await client.aclose()
            except self._errors as error:
                log.debug("store: the connection was not closed cleanly: %s", error)

    async def _leave(self) -> None:
        """Delete the own field, so that others forget this gateway at once. Give all leases back."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if self._client is not None and not self._is_away:
                    for call in () if self.leases is None else self.leases.leave():
                        await self._client.execute_command(*call.command(whole=True))
                    await self._client.hdel(KEY, self.name)
        except self._errors as error:
            log.debug("store: the own load stays until it expires: %s", error)
        await self._close()
        await self._clients.aclose()


def _end_if_cancelled() -> None:
    """Raises CancelledError if the task was cancelled. redis-py uses `asyncio.wait_for`, which swallows a cancellation
    that comes just as the wait ends, before Python 3.12.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
