"""Messages between the supervisor and one of its processes, over a socket pair. A message may carry open files."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

log = logging.getLogger("tailgate")

_HEAD = struct.Struct(">cIB")
MAX_FILES = 64
"""Most open files that are received in one turn."""


class Say(Enum):
    """Kinds of messages."""

    # from the supervisor
    SETUP = b"s"
    """The `ProcessSetup` of a process, pickled."""
    CLIENT = b"c"
    """A client's connection, for a relay."""
    DECIDER = b"d"
    """The socket to the decider, for a relay."""
    RELAY = b"r"
    """The socket to a relay, for the decider; its number."""
    RELOAD = b"h"
    LEAVE = b"l"
    """Say that the process ends soon: not ready, and answers close their connections."""
    DRAIN = b"D"
    """Finish what is under way, and end."""
    SHUT = b"S"
    """End all requests under way, because the time for draining is over."""
    # from a process
    READY = b"R"
    """The process serves; for the decider, with the URL of its admin port."""
    LOAD = b"L"
    """Connections and requests of a relay, two numbers."""
    POLICY = b"P"
    """The policy in force at the decider, as bytes."""
    STOP = b"T"
    """Somebody asked the decider to drain the gateway."""
    FAILED = b"F"
    """The process cannot begin: the exit status and the text."""


class Control:
    """One end of the socket pair."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Say, bytes, list[int]], None],
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_message`: called with kind, payload and open files (their owner is the callee). `on_closed`: called once,
        when the other end is gone.
        """
        sock.setblocking(False)
        self._socket = sock
        self._on_message = on_message
        self._on_closed = on_closed
        self._received = b""
        self._files: deque[int] = deque()
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._read)
        self.is_open = True

    def say(self, kind: Say, payload: bytes = b"", files: Sequence[int] = ()) -> None:
        """Send a message. `files`: descriptors; the other end gets copies of them. This end closes its own, once they
        are sent.
        """
        if not self.is_open:
            _close(files)
            return
        self._unsent.append((_HEAD.pack(kind.value, len(payload), len(files)) + payload, files))
        if len(self._unsent) == 1:
            self._write()

    @property
    def is_behind(self) -> bool:
        """Whether the other end does not keep up with its messages."""
        return bool(self._unsent)

    def _write(self) -> None:
        while self._unsent:
            data, files = self._unsent[0]
            try:
                sent = socket.send_fds(self._socket, [data], list(files)) if files else self._socket.send(data)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._write)
                return
            except OSError:
                self.close()
                return
            _close(files)
            if sent < len(data):
                self._unsent[0] = data[sent:], ()
                continue
            self._unsent.popleft()
        self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        try:
            data, files, _, _ = socket.recv_fds(self._socket, 2**16, MAX_FILES)
        except BlockingIOError:
            return
        except OSError:
            data, files = b"", []
        self._files.extend(files)
        if not data:
            self.close()
            return
        self._received += data
        while len(self._received) >= _HEAD.size:
            kind, length, count = _HEAD.unpack_from(self._received)
            end = _HEAD.size + length
            if len(self._received) < end:
                return
            payload, self._received = self._received[_HEAD.size : end], self._received[end:]
            if len(self._files) < count:  # nobody knows whose the others are: this process has to be replaced
                log.error("an open file did not come: raise the limit of open files, or end what uses them")
                self.close()
                return
            self._on_message(Say(kind), payload, [self._files.popleft() for _ in range(count)])

    def close(self) -> None:
        """Close this end."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        _close(self._files)
        for _, files in self._unsent:
            _close(files)
        self._on_closed()


def _close(files: Sequence[int] | deque[int]) -> None:
    for number in files:
        os.close(number)
