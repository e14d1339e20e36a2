"""State of one request of a run: its arrival, its latest try at the gateway, and its attempts in replicas."""

from __future__ import annotations

from gateway.core.policy import Policy
from gateway.core.request import NO_AFFINITY, Affinity, Endpoint, Prefix, Request
from gateway.core.serving import arm_of
from gateway.sim.engine.fleet import Host
from gateway.sim.run.tally import TierTally
from gateway.sim.workload.arrivals import BLOCK_TOKENS, Arrival

BYTES_PER_TOKEN = 4
"""Bytes per token of prompts whose tokens the gateway has to estimate."""


class SimulatedRequest:
    """A request, from its arrival until it is over."""

    __slots__ = (
        "arrival",
        "cost",
        "cut",
        "dispatched",
        "latest",
        "output_tokens",
        "retry_after_s",
        "seen",
        "tier",
        "tries",
    )

    def __init__(self, arrival: Arrival, request: Request, tier: TierTally, cost: float = 1.0) -> None:
        self.arrival = arrival
        self.latest = request
        """The latest try of the client, as the gateway gets it."""
        self.cost = cost
        """Factor on the time that this request adds to a step."""
        self.tier = tier
        self.output_tokens = min(arrival.output_tokens, request.tier.caps.granted(request.max_tokens))
        """Tokens that the model generates under the caps of client and tier."""
        self.dispatched = False
        self.seen = False
        """Whether the client has seen the beginning of the stream."""
        self.cut = False
        """Whether our cap cut the answer short. If so, the request is never good."""
        self.tries = 1
        self.retry_after_s: float | None = None
        """Seconds after which the gateway told the client to retry; None if it told no time."""

    def again(self, request: Request) -> None:
        """Begin another try of the client."""
        request.comeback = True
        self.latest = request
        self.tries += 1
        self.dispatched = self.seen = self.cut = False
        self.retry_after_s = None


class SimulatedAttempt:
    """One attempt inside a replica. `cut`: whether our cap makes the answer shorter than the caps of client and tier
    allow.
    """

    __slots__ = ("cut", "host", "output_tokens", "request", "told")

    def __init__(self, request: SimulatedRequest, host: Host, output_tokens: int, cut: bool) -> None:
        self.cut = cut
        self.told = 0
        """Number of tokens that were reported to the gateway."""
        self.request = request
        self.host = host
        self.output_tokens = output_tokens


class Misfit(ValueError):
    """A request whose tier or model is not in the policy."""

    def __init__(self, arrival: Arrival) -> None:
        super().__init__(f"the policy does not have tier {arrival.tier} or model {arrival.model}")
        self.arrival = arrival


def asked(arrival: Arrival, request_id: int, policy: Policy, prompts_known: bool, now: float) -> Request:
    """The request for the gateway. Raises Misfit if its tier or model is not in the policy."""
    tier, model = policy.tiers.get(arrival.tier), policy.model(arrival.model)
    if tier is None or model is None:
        raise Misfit(arrival)
    split = ""
    if model.split:
        key = arrival.tenant if arrival.session is None else str(arrival.session)
        split, model = model.name, arm_of(policy, model, tier, key)
    prompt_bytes = arrival.prompt_tokens * BYTES_PER_TOKEN
    return Request(
        id=request_id,
        policy=policy,
        tier=tier,
        model=model,
        tenant=arrival.tenant,
        endpoint=Endpoint.CHAT,
        stream=arrival.stream,
        prompt_bytes=prompt_bytes,
        prompt_exact=arrival.prompt_tokens if prompts_known else None,
        max_tokens=arrival.max_tokens,
        choices=1,
        body_bytes=prompt_bytes,
        split=split,
        affinity=_affinity(arrival),
        assembled=tier.caps.aggregate and not arrival.stream,
        head_at=now,
        body_at=now,
    )


def _affinity(arrival: Arrival) -> Affinity:
    """The prefix of an arrival's prompt. The hashes of a trace may be those of single blocks, or of all blocks up to
    one.
    """
    if not arrival.prefix:
        return NO_AFFINITY
    size, whole = BLOCK_TOKENS * BYTES_PER_TOKEN, arrival.prompt_tokens * BYTES_PER_TOKEN
    return Affinity(Prefix(arrival.prefix, tuple(range(size, size * (len(arrival.prefix) + 1), size)), whole))
