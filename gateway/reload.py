"""Reloads the policy. A new policy is prepared outside the event loop, and takes effect between two requests. If it is
invalid, the old policy stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from gateway.access import POLL_FILES_S, accessible, files_of, stamps_of, without_tokens
from gateway.api_side import ApiSide
from gateway.core.policy import Policy
from gateway.core.results import Callback
from gateway.driving.absent_replicas import AbsentReplicas
from gateway.driving.hub import RelayHub
from gateway.driving.local_driver import LocalDriver
from gateway.fleet.discovery.finder import ReplicaFinder
from gateway.fleet.wake import Waker
from gateway.fleet.watch import FleetWatcher
from gateway.observe.admin import Done
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.sources import PolicyInForce, Reload
from gateway.policy.errors import PolicyError, PolicyErrors, shown
from gateway.policy.exposure import exposure_error
from gateway.policy.outline import changes
from gateway.policy.watch import PolicyWatcher
from gateway.proxy.callers import Callers, callers_of
from gateway.settings import Settings

log = logging.getLogger("tailgate")

FIRST_S: Final = 5.0
"""Longest wait at the start for found replicas. A resolver of the system gives up one server after 5 s."""
KEPT_POLICIES = 10
MAX_LOGGED = 50
"""At most so many changes of a policy are logged, so that a new fleet does not flood the log."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A policy, with the parts that take a long time to compute from it."""

    written: Policy
    """The policy as its file says it."""
    policy: Policy
    """The policy with the tokens and certificates of the files that it names."""
    callers: Callers


def prepare(policy: Policy, settings: Settings, path: Path | None) -> Prepared:
    """Compute the parts of a policy that take a long time. May run in any thread. Raises `PolicyErrors`."""
    problem = exposure_error(policy, settings.host)
    if problem is not None:
        raise PolicyErrors([PolicyError(str(path), 0, "keys", problem)])
    problem = settings.body_limit_error(policy.max_body_bytes)
    if problem is not None:
        raise PolicyErrors([PolicyError(str(path), 0, "listen.max_body", problem)])
    return Prepared(policy, accessible(policy), callers_of(policy))


@dataclass(frozen=True, slots=True)
class PolicyUsers:
    """The parts of the process that get each new policy."""

    driver: LocalDriver
    api: ApiSide
    metrics: Metrics
    fleet: FleetWatcher
    finder: ReplicaFinder
    waker: Waker
    hub: RelayHub | None
    """The relays; None if this process serves the API."""
    absent: AbsentReplicas | None
    """Facts of a predecessor about replicas that may still come; None if no state is kept."""


class PolicyReloads:
    """Puts policies in force. Without a path, the first policy stays."""

    def __init__(self, users: PolicyUsers, settings: Settings, policy: Policy, path: Path | None) -> None:
        self._users = users
        self._settings = settings
        self._path = path
        self.on_policy: Callable[[Policy], None] = lambda policy: None
        """Called with each new `policy`."""
        self._has_bad_files = False
        """Whether files that the policy names could not be used when they changed last."""
        self._prepared: Prepared | None = None
        """The parts of the next policy. They are computed outside the event loop before the policy is in force."""
        self.latest = Reload(time.time())
        self.watcher = (
            None
            if path is None
            else PolicyWatcher(
                path,
                policy,
                self.configure,
                self._failed,
                prepare=self._prepare_ahead,
                on_bug=partial(users.driver.supervisor.caught, Callback.WATCH),
            )
        )
        self._stamps = stamps_of(files_of(policy))
        prepared = prepare(policy, settings, path)
        # A token of the decider before this one is in force, but not written: its file has the next one.
        self._current = replace(prepared, written=without_tokens(policy))
        users.finder.configure(policy)
        self._swap(self._current)
        users.fleet.configure(self._current.policy)
        first = PolicyInForce(policy.generation, policy.digest, self.latest.at_unix_s, ())
        self.in_force = deque([first], maxlen=KEPT_POLICIES)
        """The latest files in force, the present one last."""

    @property
    def policy(self) -> Policy:
        """The policy in force, with its tokens, and without the replicas that were found."""
        return self._current.policy

    def configure(self, policy: Policy) -> None:
        """Put a policy in force. Requests under way keep their old policy. Raises `PolicyErrors` if the new policy
        cannot be used.
        """
        prepared = self._prepared
        if prepared is None or prepared.written is not policy:
            prepared = prepare(policy, self._settings, self._path)
        self._prepared = None
        self._users.finder.configure(policy)
        self._put_in_force(prepared)

    def found(self) -> None:
        """The finder has found other replicas: put the policy in force with them."""
        self._put_in_force(self._current)

    def _put_in_force(self, prepared: Prepared) -> None:
        before, self._current = self._current, prepared
        policy = self._users.finder.applied(prepared.policy)
        generation = self._users.api.handler.policy.generation + 1
        if policy.generation != generation:
            policy = replace(policy, generation=generation)
        self._swap(replace(prepared, policy=policy))
        if prepared is not before:
            self.on_policy(self.policy)
        # The watches of replicas are changed in a later turn of the loop: ending and starting a thousand of them takes
        # as long as the rest of the reload.
        asyncio.get_running_loop().call_soon(self._watch, policy)
        self.latest = Reload(time.time())
        if before.written is prepared.written:
            log.info("policy generation %d is in force: the same file, with other replicas or keys", generation)
        else:
            self._tell(before.written, policy)

    def _tell(self, before: Policy, policy: Policy) -> None:
        """Log the policy in force, with its differences from the file before."""
        lines = changes(before.outline, policy.outline)
        if policy.digest != before.digest:
            self.in_force.append(PolicyInForce(policy.generation, policy.digest, self.latest.at_unix_s, tuple(lines)))
        log.info("policy generation %d is in force: %s", policy.generation, counted(lines))
        for line in lines[:MAX_LOGGED]:
            log.info("policy generation %d: %s", policy.generation, line)
        if len(lines) > MAX_LOGGED:
            log.info("policy generation %d: %d more changes", policy.generation, len(lines) - MAX_LOGGED)

    def _watch(self, policy: Policy) -> None:
        """Watch the replicas of the policy in force. Called by the event loop, so no exception may leave this
        method.
        """
        try:
            self._users.fleet.configure(policy)
        except Exception as error:  # noqa: BLE001 - the policy is in force, and the next reload tries again
            self._users.driver.supervisor.caught(Callback.WATCH, error)

    def _prepare_ahead(self, policy: Policy) -> None:
        self._prepared = prepare(policy, self._settings, self._path)

    def _swap(self, prepared: Prepared) -> None:
        policy, users = prepared.policy, self._users
        users.metrics.configure(policy)
        users.api.upstreams.configure(policy.pools.values())
        if users.hub is not None:
            users.hub.configure(policy)
        users.driver.configure(policy)
        if users.absent is not None:
            users.absent.claim()
        users.waker.configure(policy)
        users.api.configure(policy, prepared.callers)

    def _failed(self, errors: PolicyErrors) -> None:
        self.latest = Reload(time.time(), str(errors))
        for line in shown(errors.errors):
            log.error("policy not reloaded, the last good one stays in force: %s", line)

    async def begin(self) -> None:
        """Wait for the first answer of each source of replicas, and for the first health check of each replica that
        was found, but no longer than `FIRST_S`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await self._users.finder.begun()
                await self._users.fleet.checked()

    async def run(self) -> None:
        """Watch the policy file, the files that it names, and the sources of replicas, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self.watcher is not None:
                group.create_task(self.watcher.run())
            group.create_task(self._watch_files())
            group.create_task(self._users.finder.run())
            group.create_task(self._users.waker.run())

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(POLL_FILES_S)
            files = files_of(self._current.written)
            if files:
                stamps = await asyncio.to_thread(stamps_of, files)
                if stamps != self._stamps:
                    self._stamps = stamps
                    await self.refresh()

    async def refresh(self) -> None:
        """Put the policy in force again, with files that it names read anew. If they are bad, the old ones stay."""
        try:
            while True:
                written = self._current.written
                prepared = await asyncio.to_thread(prepare, written, self._settings, self._path)
                if written is self._current.written:  # else another policy came meanwhile
                    break
            if self._has_bad_files or prepared.policy.pools != self._current.policy.pools:
                self._has_bad_files = False
                self._put_in_force(prepared)
        except PolicyErrors as errors:
            self._has_bad_files = True
            self._failed(errors)
        except Exception as error:  # noqa: BLE001 - a bug with one file must not stop the watching
            self._users.driver.supervisor.caught(Callback.WATCH, error)

    async def reload(self) -> Done:
        """Read the policy file again."""
        if self.watcher is None:
            log.warning("asked to reload, but there is no policy file: the built-in policy stays in force")
            return Done(False, "there is no policy file: the built-in policy is in force")
        if await self.watcher.reload():
            return Done(True, f"policy generation {self._users.api.handler.policy.generation} is in force")
        return Done(False, self.latest.error)


def counted(lines: list[str]) -> str:
    """How many changes there are, in words."""
    return "the file says the same as before" if not lines else f"{len(lines)} change{'s' if len(lines) > 1 else ''}"
