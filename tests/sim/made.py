"""Small policies and workloads for tests of the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gateway.core.commands import Cancel, Command, Dispatch, Ended, Refuse
from gateway.core.policy import AdmissionMode, AdmissionSpec, Model, Policy, Tier
from gateway.core.pool_spec import PoolSpec, ReplicaSpec, Timeouts
from gateway.core.results import AttemptResult, Record
from gateway.core.slo import Objective, Slo
from gateway.sim.run.decider import Decider
from gateway.sim.run.results import Result
from gateway.sim.workload.arrivals import Arrival

OFF, ENFORCE = AdmissionSpec(AdmissionMode.OFF), AdmissionSpec(AdmissionMode.ENFORCE)
FOREVER = Timeouts(queue_s=1e6, ttft_s=1e6, idle_s=1e6, total_s=1e6)


def tier(name: str = "default", priority: int = 0, ttft_s: float = 1.0, **more: Any) -> Tier:
    """A tier with admission off, no queue timeout, and a TTFT objective of `ttft_s`."""
    slo = Slo(ttft=(Objective(0.99, ttft_s),))
    return Tier(name, priority, **{"slo": slo, "timeouts": FOREVER, "admission": OFF, **more})


def policy(*tiers: Tier, replicas: int = 1, slots: int | None = 64, **more: Any) -> Policy:
    """One pool `p` of replicas `r1`, `r2`, ...; the model `default`."""
    specs = tuple(ReplicaSpec(f"r{i}", f"http://r{i}:8000") for i in range(1, replicas + 1))
    by_name = {t.name: t for t in tiers or (tier(),)}
    return Policy(
        models={"default": Model("default", ("p",))},
        pools={"p": PoolSpec("p", specs, slots=slots, **more)},
        tiers=by_name,
        keys={},
        default_tier=next(iter(by_name)),
    )


def arrival(at: float, prompt_tokens: int = 100, output_tokens: int = 10, **more: Any) -> Arrival:
    """One request of tier, tenant and model `default`."""
    named = {"tier": "default", "tenant": "default", "model": "default", **more}
    return Arrival(at, prompt_tokens=prompt_tokens, output_tokens=output_tokens, **named)


@dataclass
class Heard:
    """The calls to a decider, and its answers."""

    at: float
    call: str
    args: tuple[Any, ...]
    out: list[Command]


class Spy:
    """A decider that passes every call on and records it."""

    def __init__(self, inner: Decider) -> None:
        self.inner = inner
        self.heard: list[Heard] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> list[Command]:
            out: list[Command] = getattr(self.inner, name)(*args)
            self.heard.append(Heard(args[-1], name, args[:-1], out))
            return out

        return self.inner.wake_at if name == "wake_at" else call

    def calls(self, *names: str) -> list[Heard]:
        """The calls of these names."""
        return [heard for heard in self.heard if heard.call in names]

    def finishes(self) -> list[AttemptResult]:
        """How attempts ended, in order."""
        return [heard.args[1] for heard in self.calls("finish") if isinstance(heard.args[1], AttemptResult)]

    def commands(self) -> Iterator[Command]:
        """Every command, in order."""
        for heard in self.heard:
            yield from heard.out

    def records(self) -> list[Record]:
        """Every request that is over, in order."""
        return [command.record for command in self.commands() if isinstance(command, Ended)]

    def dispatches(self) -> list[Dispatch]:
        """Every dispatch, in order."""
        return [command for command in self.commands() if isinstance(command, Dispatch)]

    def refusals(self) -> list[Refuse]:
        """Every refusal, in order."""
        return [command for command in self.commands() if isinstance(command, Refuse)]

    def cancels(self) -> list[Cancel]:
        """Every cancellation, in order."""
        return [command for command in self.commands() if isinstance(command, Cancel)]


def timeless(found: Result) -> Result:
    """A result without its machine-dependent fields: equal for two equal runs."""
    return replace(found, cpu_s=0.0, requests_per_cpu_s=0.0, events_per_cpu_s=0.0)
