"""Limits of accepted connections before they send anything."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, cast

import pytest

from gateway.app import Gateway
from gateway.listener import KEEP_ALIVE_IDLE_S, SEND_BUFFER_BYTES
from gateway.policy.builtin import builtin
from gateway.settings import Settings

IDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))


async def test_client_connections_have_keep_alive_probes_and_small_kernel_buffers() -> None:
    if IDLE is None:
        pytest.skip("this platform has no time for keep-alive")
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with Gateway(settings, builtin(["http://127.0.0.1:1"])) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.listeners[0].port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"}")
        (door,) = gateway.limits.open
        accepted = cast(Any, door).transport.get_extra_info("socket")
        with socket.socket(fileno=os.dup(accepted.fileno())) as raw:
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert raw.getsockopt(socket.IPPROTO_TCP, IDLE) == KEEP_ALIVE_IDLE_S
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER_BYTES
        writer.close()
