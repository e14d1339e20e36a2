"""Writes the controller's journal while requests are served: in batches, by a thread, and without delaying requests.

The request path only adds each call to a list. After `BATCH` calls, and every `FLUSH_S`, the list is encoded as lines,
which a thread writes. If the disk is slow or full, calls are dropped and counted. The log says so once, and the journal
gets a line about the gap when writing works again. Definitions of names are never dropped, because later lines refer to
them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from uuid import uuid4

import orjson

from gateway.core.journal.recorder import Encoder, Told
from gateway.core.policy import Policy
from gateway.observe.journal.parts import Parts

log = logging.getLogger("tailgate")

BATCH = 64
"""Number of calls that are encoded at a time. So few calls are still in the processor's cache, which makes encoding a
quarter cheaper.
"""
FLUSH_S = 0.05
BUFFER_BYTES = 16 * 2**20
"""Limit on the bytes of lines that wait for the disk."""
CLOSE_S = 5.0


class Journal:
    """Records calls (`tell`) until it is closed. `run` must be running all the time. The constructor raises
    `SettingError` if the journal cannot be started.
    """

    def __init__(
        self,
        path: Path,
        policy: Policy,
        seed: int,
        version: str,
        *,
        max_bytes: int,
        files: int,
    ) -> None:
        self.path = path
        self._encoder = Encoder(policy)
        about: Mapping[str, object] = {"run": uuid4().hex, "version": version}
        self._parts = Parts(path, {**about, **self._encoder.header(seed)}, max_bytes, files)
        self._told: list[Told] = []
        self._chunks: list[bytes] = []
        self._calls = 0
        """Number of calls in `_chunks`."""
        self._gap = 0
        """Number of calls that were dropped after the last handover to the thread, and before the calls in
        `_chunks`.
        """
        self._dropped = self._lost = 0
        """Number of calls that were never handed over to the thread, and number of calls that the thread could not
        write.
        """
        self._offered = self._taken = 0
        """Bytes handed over to the thread, counted by the event loop, and bytes written, counted by the thread."""
        self._quiet = False
        self._work: SimpleQueue[tuple[int, int, bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Number of calls that are recorded but not encoded yet."""
        return len(self._told)

    @property
    def dropped(self) -> int:
        """Number of calls that are missing in the journal."""
        return self._dropped + self._lost

    def tell(self, told: Told) -> None:
        """Record one call, with its answer."""
        self._told.append(told)
        if len(self._told) >= BATCH:
            self._encode()

    async def run(self) -> None:
        """Hand the recorded calls over to the thread every `FLUSH_S`, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self.flush()

    def flush(self) -> None:
        """Hand the recorded calls over to the thread."""
        self._encode()
        self._hand_over()

    async def aclose(self) -> None:
        """Write the remaining calls, for at most `CLOSE_S` seconds, and close."""
        self.flush()
        self._work.put((self._gap, 0, b""))
        self._work.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_S)
        if self._thread.is_alive():
            log.error("the end of the journal %s is missing: the disk took longer than %.0f s", self.path, CLOSE_S)

    # ---- on the event loop

    def _encode(self) -> None:
        told = self._told
        if not told:
            return
        if self._offered - self._taken > BUFFER_BYTES:
            self._drop(len(told), "the disk does not keep up")
        else:
            try:
                lines = b"\n".join(map(orjson.dumps, self._encoder.rows(told)))
            except TypeError as error:
                self._drop(len(told), f"a call cannot be written: {error}")
            else:
                self._chunks.append(lines)
                self._calls += len(told)
                self._offered += len(lines) + 1
        told.clear()

    def _hand_over(self) -> None:
        if self._chunks:
            self._chunks.append(b"")
            self._work.put((self._gap, self._calls, b"\n".join(self._chunks)))
            self._chunks, self._calls, self._gap = [], 0, 0

    def _drop(self, calls: int, why: str) -> None:
        self._hand_over()
        self._gap += calls
        self._dropped += calls
        self._complain(why)

    # ---- in the thread

    def _write(self) -> None:
        gap, names = 0, b""
        while (work := self._work.get()) is not None:
            dropped, calls, lines = work
            gap += dropped
            missing = b'{"gap":%d}\n' % gap if gap else b""
            try:
                self._parts.write(missing + names + lines)
            except OSError as error:
                gap += calls
                names += b"".join(line for line in lines.splitlines(keepends=True) if line.startswith(b'{"let"'))
                self._lost += calls
                self._complain(str(error.strerror))
            else:
                gap, names = 0, b""
            self._taken += len(lines)
        self._parts.close()

    def _complain(self, why: str) -> None:
        if not self._quiet:
            self._quiet = True
            log.error("calls are missing in the journal %s, so the rest cannot be replayed: %s", self.path, why)
