"""Runs the gateway as a process: checks settings, handles signals, returns the exit status."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import uvloop

from gateway.app import Gateway
from gateway.core.policy import Policy
from gateway.garbage import tune_collector
from gateway.listener import CANNOT_LISTEN, ListenError
from gateway.notify import notify
from gateway.observe import build_info
from gateway.observe.logs import configure_logging
from gateway.opened_sockets import OpenedSockets, opened_sockets
from gateway.policy.errors import PolicyErrors
from gateway.policy.exposure import exposure_error
from gateway.policy.load import load
from gateway.settings import SettingError, Settings, strangers
from gateway.workers.processes import CannotBeginError
from gateway.workers.supervisor import WorkerSupervisor

log = logging.getLogger("tailgate")

UNUSED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that other servers use to reopen logs or to replace processes. Unhandled, they would end the process."""


def _cannot_listen(settings: Settings, opened: OpenedSockets) -> str | None:
    """An error text if the API or the admin pages cannot listen at their address; None if they can."""
    for host, port, prefix, is_open in (
        (settings.host, settings.port, "", opened.api),
        (settings.admin_host, settings.admin_port, "admin_", opened.admin),
    ):
        if is_open:
            continue
        failed, usable = "no address", False
        try:
            addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            addresses, failed = [], getattr(error, "strerror", None) or "not a host name"
        for family, kind, _, _, address in addresses:
            try:
                with socket.socket(family, kind) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(address)
                    usable = True
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return f"port {port} is taken: give another by {_option(f'{prefix}port')}; 0 takes a free one"
                failed = error.strerror or str(error)  # a name may have addresses of a family that is switched off
        if not usable:
            options = f"{_option(f'{prefix}host')} or {_option(f'{prefix}port')}"
            return f"{host} port {port} cannot be listened on: {failed}: give another by {options}"
    return None


def _option(setting: str) -> str:
    return f"--{setting.replace('_', '-')} (TAILGATE_{setting.upper()})"


def serve(settings: Settings, policy_path: Path | None, make: Callable[[], Policy]) -> int:
    """Run the gateway until SIGTERM or SIGINT. Returns the exit status.

    `make`: makes the policy if there is no file. Raises PolicyErrors.
    """
    for number in UNUSED:
        signal.signal(number, signal.SIG_IGN)  # until the loop runs, and after it
    configure_logging(settings.log_level, as_json=settings.log_format == "json")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    tune_collector()
    for unknown, meant in strangers(os.environ):
        log.warning("%s is not a setting and has no effect%s", unknown, f": did you mean {meant}?" if meant else "")
    try:
        opened = opened_sockets()
        settings = opened.addressed(settings)
        policy = load(policy_path) if policy_path is not None else make()
        problem = exposure_error(policy, settings.host) or settings.body_limit_error(policy.max_body_bytes)
        if problem is None:
            problem = _cannot_listen(settings, opened)
            workers = (os.cpu_count() or 1) if settings.workers == "auto" else settings.workers
            if problem is None and workers > 1:
                return uvloop.run(_supervise(settings, policy, policy_path, workers, opened))
            if problem is None:
                return uvloop.run(_run(settings, policy, policy_path, opened))
            print(problem, file=sys.stderr)
            return CANNOT_LISTEN
    except (PolicyErrors, SettingError) as error:
        problem = str(error)
    except ListenError as error:
        print(error, file=sys.stderr)
        return CANNOT_LISTEN
    except ssl.SSLError as error:
        problem = f"the certificate or its key cannot be used: {error}"
    print(problem, file=sys.stderr)
    return 1


async def _supervise(
    settings: Settings, policy: Policy, policy_path: Path | None, workers: int, opened: OpenedSockets
) -> int:
    """Run a decider and some relays."""
    supervisor = WorkerSupervisor(settings, policy, policy_path, workers, opened)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop.set)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    loop.add_signal_handler(signal.SIGUSR2, supervisor.replace)
    loop.add_signal_handler(signal.SIGUSR1, log.info, "%s has no meaning here and is ignored", "SIGUSR1")
    starting = asyncio.create_task(supervisor.start())
    stopping = asyncio.create_task(supervisor.stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return 0
        await starting
        log.info(
            "tailgate %s (%s, %d relays): API on %s, admin on %s",
            build_info.release(),
            build_info.kind(),
            workers,
            supervisor.url,
            supervisor.admin_url,
        )
        notify("READY=1")
        await stopping
        notify("STOPPING=1")
    except CannotBeginError as failed:
        print(failed, file=sys.stderr)
        return failed.status
    finally:
        await supervisor.drain()
    return 1 if supervisor.broken else 0


async def _run(settings: Settings, policy: Policy, policy_path: Path | None, opened: OpenedSockets) -> int:
    loop = asyncio.get_running_loop()
    made = Gateway(settings, policy, policy_path)
    opened.give(*made.listeners[:2])
    async with made as gateway, asyncio.TaskGroup() as reloads:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, gateway.stop.set)
        for number in UNUSED:
            loop.add_signal_handler(number, log.info, "%s has no meaning here and is ignored", number.name)
        loop.add_signal_handler(signal.SIGHUP, lambda: reloads.create_task(gateway.reloads.reload()))
        log.info(
            "tailgate %s (%s): API on %s, admin on %s",
            build_info.release(),
            build_info.kind(),
            gateway.url,
            gateway.admin_url,
        )
        notify("READY=1")
        ends = [asyncio.create_task(event.wait()) for event in (gateway.stop, gateway.broken)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        notify("STOPPING=1")
        for end in ends:
            end.cancel()
        loop.add_signal_handler(signal.SIGHUP, log.info, "not reloaded: the process is going down")
    return 1 if gateway.broken.is_set() else 0
