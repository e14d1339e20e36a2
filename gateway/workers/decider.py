"""The decider: it takes the decisions for all relays, watches the replicas, and serves the admin port."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Coroutine

from gateway.app import Gateway
from gateway.core.policy import Policy
from gateway.driving.policy_bytes import policy_from_bytes, to_bytes
from gateway.driving.relay_link import FrameClock
from gateway.listener import CANNOT_LISTEN, ListenError
from gateway.opened_sockets import OpenedSockets
from gateway.policy.errors import PolicyErrors, shown
from gateway.policy.load import load
from gateway.reload import prepare
from gateway.settings import SettingError
from gateway.workers.child import Ears, ProcessSetup, run
from gateway.workers.control import Control, Say

log = logging.getLogger("tailgate")

ATTEMPT_BITS = 40
"""Ids of attempts carry the number of their decider above these bits."""


async def _main(setup: ProcessSetup, control: Control, ears: Ears) -> int:
    try:
        policy = _policy(setup)
        gateway = Gateway(setup.settings, policy, setup.policy_path, relays=FrameClock(time.monotonic))
    except (PolicyErrors, SettingError) as error:
        control.say(Say.FAILED, f"1 {error}".encode())
        return 1
    opened = OpenedSockets(admin=tuple([socket.socket(fileno=each) for each in setup.admin_sockets]))
    opened.give(*gateway.listeners[:2])
    hub = gateway.hub
    assert hub is not None
    gateway.reloads.on_policy = lambda policy: control.say(Say.POLICY, to_bytes(policy))
    gateway.driver.call(gateway.controller.number_from, (setup.number << ATTEMPT_BITS,))
    tasks: set[asyncio.Task[object]] = set()
    drained = asyncio.Event()

    def on_message(kind: Say, payload: bytes, files: list[int]) -> None:
        work: Coroutine[object, object, object] | None = None
        if kind is Say.RELAY:
            work = hub.connect(int(payload), socket.socket(fileno=files[0]))
        elif kind is Say.RELOAD:
            work = gateway.reloads.reload()
        elif kind is Say.LEAVE:
            gateway.handler.leaving = True
        elif kind is Say.SHUT:
            gateway.driver.shut()
        elif kind is Say.DRAIN:
            drained.set()
        if work is not None:
            task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    try:
        async with gateway:
            control.say(Say.POLICY, to_bytes(gateway.reloads.policy))
            control.say(Say.READY, gateway.admin_url.encode())
            ears.begin(on_message, drained.set)
            stop = asyncio.create_task(gateway.stop.wait())
            stop.add_done_callback(lambda ended: None if ended.cancelled() else control.say(Say.STOP))
            ends = [asyncio.create_task(event.wait()) for event in (drained, gateway.broken)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (*ends, stop):
                end.cancel()
    except ListenError as error:
        control.say(Say.FAILED, f"{CANNOT_LISTEN} {error}".encode())
        return CANNOT_LISTEN
    return 1 if gateway.broken.is_set() else 0


def _policy(setup: ProcessSetup) -> Policy:
    """The policy of the file, or else the last in force: a change of the file is noticed later. Raises `PolicyErrors`
    if there is neither.
    """
    if setup.policy_path is not None:
        try:
            policy = load(setup.policy_path)
            if setup.policy:  # without one to fall back to, its errors are told when it is put in force
                prepare(policy, setup.settings, setup.policy_path)
            return policy
        except PolicyErrors as errors:
            if not setup.policy:
                raise
            for line in shown(errors.errors):
                log.error("policy not loaded, the last good one stays in force: %s", line)
    return policy_from_bytes(setup.policy)


if __name__ == "__main__":
    run(_main)
