"""Hot reload: reads the policy file again when it changes. If it is invalid, the last valid policy is kept."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from watchfiles import awatch

from gateway.core.policy import Policy
from gateway.policy.apart import load_apart
from gateway.policy.errors import PolicyError, PolicyErrors

# The file is also checked at this interval. Network file systems give no notice of changes, and queues of notices may
# overflow.
POLL_S = 5.0


class PolicyWatcher:
    """Reads `path` again on changes or on demand. Calls `on_policy` with a valid policy, or `on_errors` with the errors
    of an invalid policy.

    `on_bug`: called with any other exception (a bug) of `on_policy` or `prepare`. In this case, the last valid policy
    stays.

    `on_policy` runs on the event loop, with a higher generation. Reading, checking and `prepare` run in a thread. A
    large policy is read in a process of its own. All this takes longer than requests should wait. `prepare` and
    `on_policy` may refuse the policy by raising `PolicyErrors`.
    """

    def __init__(
        self,
        path: Path,
        policy: Policy,
        on_policy: Callable[[Policy], None],
        on_errors: Callable[[PolicyErrors], None],
        *,
        prepare: Callable[[Policy], None] = lambda policy: None,
        on_bug: Callable[[Exception], None] = lambda error: None,
        poll_s: float = POLL_S,
    ) -> None:
        self._path = path
        self._on_policy = on_policy
        self._on_errors = on_errors
        self._prepare = prepare
        self._on_bug = on_bug
        self._poll_s = poll_s
        self._reloading = asyncio.Lock()
        self._seen = policy.digest
        self.generation = policy.generation
        """Generation of the last valid policy of the file."""

    async def run(self) -> None:
        """Watch until cancelled. A change between loading and the start of watching is noticed, too."""
        async for _ in self._notices():
            if await asyncio.to_thread(_digest_of, self._path) != self._seen:
                await self.reload()

    async def reload(self) -> bool:
        """Read the file now, even if it is unchanged. Returns True if its policy is put in force, False if the last
        valid policy stays.
        """
        async with self._reloading:
            self._seen = await asyncio.to_thread(_digest_of, self._path)
            generation = self.generation + 1
            try:
                policy = await asyncio.to_thread(self._read, generation)
                self._on_policy(policy)
            except PolicyErrors as errors:
                self._on_errors(errors)
                return False
            except Exception as error:  # noqa: BLE001 - a bug with one policy must not stop the watching
                self._on_bug(error)
                said = f"a bug of the gateway prevented its use: {type(error).__name__}, see the log"
                self._on_errors(PolicyErrors([PolicyError(str(self._path), 0, "", said)]))
                return False
            self._seen = policy.digest
            self.generation = generation
            return True

    def _read(self, generation: int) -> Policy:
        policy = replace(load_apart(self._path), generation=generation)
        self._prepare(policy)
        return policy

    async def _notices(self) -> AsyncIterator[object]:
        """Yields whenever the file may have changed.

        The folder is watched instead of the file: editors replace files, and Kubernetes replaces the link `..data`
        beside them.
        """
        folders = _folders(self._path)
        timeout_ms = max(1, int(self._poll_s * 1000))
        async for changes in awatch(
            *folders, watch_filter=None, recursive=False, yield_on_timeout=True, rust_timeout=timeout_ms
        ):
            yield changes


def _folders(path: Path) -> Sequence[Path]:
    """The folder of the path as written, and the folder of its target if it is a link into another folder."""
    here, there = path.absolute().parent, path.resolve().parent
    # If the target is inside `here` (such as `..data`), it is enough to watch `here`. The next change may also remove
    # such a target.
    return [here] if there.is_relative_to(here.resolve()) else [here, there]


def _digest_of(path: Path) -> str:
    """SHA-256 of the file, like the policy's own digest; empty if the file does not exist."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
