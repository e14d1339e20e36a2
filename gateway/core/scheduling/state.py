"""State shared by the parts of the controller: the requests and attempts under way, and the objects that decide."""

from __future__ import annotations

from collections import deque
from typing import Final

from gateway.core.admission.admission import Admission
from gateway.core.deadlines import Timers
from gateway.core.estimators.prompt_length import PromptEstimator
from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.other_gateways import OtherGateways
from gateway.core.fleet.pool import Pool
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.forecast.learner import Learner
from gateway.core.policy import Policy
from gateway.core.redundancy.hedging import Hedges
from gateway.core.redundancy.request_quarantine import Quarantine
from gateway.core.redundancy.retries import Retries
from gateway.core.redundancy.retry_budget import RetryBudget
from gateway.core.request import Random
from gateway.core.request_state import Attempt, RequestState
from gateway.core.scheduling.accounting import Accounting
from gateway.core.scheduling.placement import Placement
from gateway.core.scheduling.present_call import PresentCall
from gateway.core.scheduling.retry_after import RetryAfter

BREAKERS: Final = -1
"""Key of the timer of the check of all replicas. Keys of requests' timers are their ids, which are above zero."""
OTHERS: Final = -2
"""Key of the timer after which a silent gateway is forgotten."""


class State:
    """State of one controller."""

    def __init__(self, policy: Policy, random: Random) -> None:
        self.policy = policy
        self.random = random
        self.call = PresentCall()
        self.requests: dict[int, RequestState] = {}
        """Requests under way, by id."""
        self.attempts: dict[int, Attempt] = {}
        """Attempts that hold a slot, by id."""
        self.on_hold = 0  # requests, in all pools
        self.timers = Timers()
        self.due: deque[int] = deque()
        """Ids of requests whose timers have fired and are still to be handled. Empty between calls, unless a call
        raised.
        """
        self.woken = 0
        """Id of the request whose deadline was acted on last."""
        self.disbelieved: dict[tuple[str, str], int] = {}
        """Number of impossible usage reports, by (pool, replica), since they were last read."""
        self.fleet = Fleet(policy)
        self.quarantine = Quarantine()
        self.prompts = PromptEstimator()
        self.forecaster = Forecaster()
        self.others = OtherGateways(self.fleet, self.forecaster.shared)
        self.admission = Admission(policy, self.fleet, self.forecaster)
        self.accounting = Accounting(self.prompts, self.forecaster, self.admission.promises)
        self.places = Placement(self.fleet, self.prompts)
        self.retry_after = RetryAfter(self.forecaster, random)
        self.retry_budget = RetryBudget()
        self.retries = Retries(self.fleet, self.retry_budget, random)
        self.hedges = Hedges(policy, self.admission.outlook, self.quarantine, self.retry_budget, random)
        # The order matters when an attempt closes: no other learner reads the facts of hedging, so it comes last.
        self.learners: tuple[Learner, ...] = (self.forecaster, self.hedges)

    def waiting(self, pool: Pool) -> list[RequestState]:
        """Requests queued for a slot of `pool`, by priority and then by deadline."""
        return [self.requests[queued.request.id] for queued in pool.queue]

    def configure(self, policy: Policy) -> list[Pool]:
        """Apply a policy. Returns the pools that it removes. Learned facts of the other pools are kept."""
        now = self.call.now
        self.policy = policy
        gone = self.fleet.configure(policy, now)
        self.others.add_again(now)
        self.admission.configure(policy)
        self.hedges.configure(policy)
        self.forecaster.keep(policy, self.attempts.values())
        for pool in self.fleet:
            for replica in pool.replicas.values():
                replica.slowness = self.forecaster.slowness(replica)
        self.accounting.tenants.configure(policy.tiers, now)
        return gone
