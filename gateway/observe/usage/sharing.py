"""Sums of usage over the store that gateways share: each tells its own, and keeps those of the others in its file.

A value in the store has everything that one file has summed in one hour. So a value that is written or read twice
counts once, and any file has the sums of all. An index has the digest of each value, so that only new ones are read.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final

from gateway.observe.usage.database import UsageDatabase, UsageError
from gateway.observe.usage.hour_bytes import digest, from_bytes, to_bytes
from gateway.store_client import StoreClients, reason_of

log = logging.getLogger("tailgate")

EVERY_S: Final = 5.0
TIMEOUT_S: Final = 1.0
"""Longest wait for the store. A thread waits, no request."""
KEEP_H: Final = 7 * 24
"""Hours for which the store keeps a value. A gateway that begins later, or was away for longer, lacks it."""
AT_ONCE: Final = 50
"""Values in one command."""
INDEX: Final = "{tailgate}:usage"
KEYS: Final = f"{INDEX}:".encode()
"""Keys of values begin so."""
_PAIR: Final = re.compile(r"(\d{1,9}):([0-9a-f]{16})")
"""In the index: hour and file of a value, and the hour in which it was told with its digest."""
HOUR_S: Final = 3600


class UsageSharing:
    """Exchanges sums (`exchange`), while `run` runs every few seconds."""

    def __init__(self, url: str, path: Path) -> None:
        """`url`: of the store. `path`: the file of the ledger, which exists. Raises StoreError."""
        self.error = ""
        """Why the sums of the others are not the latest; empty if they are."""
        self._clients = StoreClients(url, TIMEOUT_S)
        self._path = path
        self._lock = Lock()
        self._database: UsageDatabase | None = None
        self._unread = ""
        """Error text of the last value that could not be read."""
        self._client: Any = None

    @property
    def problem(self) -> str:
        """The error in a sentence; empty if there is none."""
        return self.error and f"the latest sums of other gateways are missing: {self.error}"

    async def run(self) -> None:
        """Exchange again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await asyncio.to_thread(self.exchange)

    async def aclose(self) -> None:
        """Tell the last sums, once they are in the file, and close."""
        await asyncio.to_thread(self._close)

    # ---- in a thread

    def exchange(self) -> None:
        """Tell the store the own sums, and take those of the others."""
        from redis.exceptions import RedisError  # imported here, because only `--store` needs it

        with self._lock:
            try:
                self._exchange()
            except (RedisError, OSError, sqlite3.Error, UsageError) as error:
                reason = reason_of(error)
                if not self.error:
                    log.error("usage is not shared over the store now, later all of it will be: %.200s", reason)
                self.error = reason
            else:
                if self.error:
                    log.info("usage is shared over the store again")
                self.error = ""

    def _close(self) -> None:
        self.exchange()
        if self._database is not None:
            self._database.close()
        if self._client is not None:
            self._client.close()

    def _exchange(self) -> None:
        hour = int(time.time() // HOUR_S)
        if self._client is None:
            self._client = self._clients.connect_blocking()
        if self._database is None:
            self._database = UsageDatabase(self._path)
        index: Mapping[bytes, bytes] = self._client.hgetall(INDEX)
        lost = [each for each in self._database.hours(hour - KEEP_H) if field_of(each, self._database) not in index]
        self._database.change(lost)
        self._tell(self._database, hour)
        self._hear(self._database, index, hour)

    def _tell(self, database: UsageDatabase, now_hour: int) -> None:
        """Write the hours that have changed."""
        untold = database.untold()
        for start in range(0, len(untold), AT_ONCE):
            some = untold[start : start + AT_ONCE]
            pipeline = self._client.pipeline(transaction=False)
            for hour, _ in some:
                value = to_bytes(database.read(hour, hour + 1), database.fleet(hour, hour + 1))
                field = field_of(hour, database)
                pipeline.set(KEYS + field, value, ex=KEEP_H * HOUR_S)
                pipeline.hset(INDEX, field, f"{now_hour}:{digest(value)}")
            for answer in pipeline.execute(raise_on_error=False):  # raised errors would repeat the whole command
                if isinstance(answer, Exception):
                    raise answer
            database.is_told(some)

    def _hear(self, database: UsageDatabase, index: Mapping[bytes, bytes], now_hour: int) -> None:
        """Keep the hours of the others that have changed."""
        stale: list[bytes] = []
        wanted: list[tuple[int, str]] = []
        for field, told_hour, hour, name, known in _told(index):
            if told_hour < now_hour - KEEP_H:
                stale.append(field)
            elif name != database.name and database.digest_of(hour, name) != known:
                wanted.append((hour, name))
        for start in range(0, len(wanted), AT_ONCE):
            some = wanted[start : start + AT_ONCE]
            values = self._client.mget([KEYS + f"{hour}:{name}".encode() for hour, name in some])
            for (hour, name), value in zip(some, values, strict=True):
                if value is not None and self._is_readable(value, hour, name):
                    database.keep(hour, name, digest(value), value)
        if stale:
            self._client.hdel(INDEX, *stale)

    def _is_readable(self, value: bytes, hour: int, name: str) -> bool:
        try:
            from_bytes(value, hour)
        except UsageError as error:
            if str(error) != self._unread:
                self._unread = str(error)
                log.warning("store: the usage of gateway %s is ignored: %.200s", name, error)
            return False
        return True


def field_of(hour: int, database: UsageDatabase) -> bytes:
    """The field in the index for an hour of a file."""
    return f"{hour}:{database.name}".encode()


def _told(index: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, int, int, str, str]]:
    """(field, hour when it was told, hour of the sums, name of the file, digest) of each field that a gateway wrote."""
    for field, said in index.items():
        named = _PAIR.fullmatch(field.decode("utf-8", "replace"))
        known = _PAIR.fullmatch(said.decode("utf-8", "replace"))
        if named is not None and known is not None:
            yield field, int(known[1]), int(named[1]), named[2], known[2]
