"""`python -m loadtests.live.gateway --baseline NAME ...`: the gateway's own data plane with a baseline's decisions.

Requests, streams, metrics and scrapes are those of `tailgate serve`. Only the decider differs: it is a row of
`gateway.sim.baselines.baselines`, as in the simulator. So a difference to the real gateway comes from decisions, not
from the proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
from pathlib import Path
from typing import cast

import uvloop

from gateway.app import Gateway
from gateway.core.commands import Command, Dispatch
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.results import AttemptResult, Reason
from gateway.core.sample import Sample
from gateway.policy import load
from gateway.settings import Settings
from gateway.sim.baselines import baselines
from gateway.sim.run.decider import Decider, Overheard


class Stand:
    """Takes the gateway's calls to its controller, and lets the baseline answer them.

    The controller still gets observations of replicas and policies, so that reads of its state work.
    """

    def __init__(self, decider: Decider, controller: Controller) -> None:
        self._controller = controller
        self._decider = decider = Overheard(decider, self._heard)
        self._open: set[int] = set()
        """Attempts that were dispatched and are still open."""
        self.arrive = decider.arrive
        self.sent = decider.sent
        self.first_token = decider.first_token
        self.full = decider.first_token
        self.progress = decider.progress
        self.wake = decider.wake
        self.wake_at = decider.wake_at

    def __getattr__(self, name: str) -> object:
        return getattr(self._controller, name)

    def is_open(self, attempt_id: int) -> bool:
        """Whether the attempt was dispatched and has not ended."""
        return attempt_id in self._open

    def finish(self, attempt_id: int, finish: AttemptResult, now: float) -> list[Command]:
        """The attempt has ended."""
        self._open.remove(attempt_id)
        return self._decider.finish(attempt_id, finish, now)

    def paused(self, attempt_id: int, now: float) -> list[Command]:
        """A baseline watches no stream."""
        return []

    def resumed(self, attempt_id: int, now: float) -> list[Command]:
        """A baseline watches no stream."""
        return []

    def leave(self, request_id: int, now: float, why: Reason = Reason.CLIENT_GONE) -> list[Command]:
        """The client has left, for any reason."""
        return self._decider.leave(request_id, now)

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        """A scrape of a replica has ended."""
        self._controller.observe(replica_name, sample, now)
        return self._decider.observe(replica_name, sample, now)

    def configure(self, policy: Policy, now: float) -> list[Command]:
        """Ignore a new policy: baselines keep theirs."""
        return self._controller.configure(policy, now)

    def shut(self, now: float) -> list[Command]:
        """Do nothing: requests under way end with the process."""
        return []

    def _heard(self, commands: list[Command], now: float) -> None:
        self._open.update(command.attempt for command in commands if isinstance(command, Dispatch))


async def serve(policy: Policy, baseline: str) -> None:
    """Serve on free ports until SIGTERM. Raises ValueError if there is no such baseline."""
    setup = baselines.setup(baseline, policy)
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    gateway = Gateway(settings, setup.policy)
    decider = setup.decider(setup.policy, random.Random())
    gateway.driver.controller = cast(Controller, Stand(decider, gateway.controller))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with gateway:
        print(f"API on {gateway.url}, admin on {gateway.admin_url}", flush=True)
        await stop.wait()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.live.gateway", description=__doc__)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--baseline", required=True, help="NAME or NAME:KEY=VALUE,...")
    options = parser.parse_args()
    uvloop.run(serve(load(options.policy), options.baseline))


if __name__ == "__main__":
    main()
