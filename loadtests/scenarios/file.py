"""The fields of a scenario file. It is read and checked like policy files: all errors at once, by line and field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from gateway.policy.errors import did_you_mean
from gateway.policy.sections.section import Section, duration, optional, plain
from gateway.policy.sections.values import Count, CountOrZero, Duration, Name, Rate
from gateway.sim.engine.profiles import PROFILES
from gateway.sim.workload import arrival_process as pace
from gateway.sim.workload import synthetic
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.workload_file import Distribution, Positive
from loadtests.emulator.faults import FaultKind

FOLDER = Path(__file__).parent
MODEL = "default"
RECOVER = "recover"
OURS = "tailgate"
START_S = 10.0
"""Seconds in which replicas and a contender start."""
PROXIED = ("nginx", "vllm-router", "litellm")
"""Contenders besides the baselines of the simulator."""


def _profile(name: object) -> object:
    if name not in PROFILES:
        raise ValueError("{value} is not a profile: " + did_you_mean(str(name), PROFILES))
    return name


def _fault(name: object) -> object:
    if name != RECOVER and name not in list(FaultKind):
        raise ValueError("{value} is not a fault: " + did_you_mean(str(name), [*FaultKind, RECOVER]))
    return name


class TrafficSection(Section):
    """A stream of requests of one tier; several streams run side by side."""

    tier: Name = Field(description="Tier of its requests. The TTFT of the first stream's tier is shown.")
    rate: Rate = Field(description="Requests in the mean, such as 5/s.")
    prompt_tokens: Distribution = Field(description="Lengths of prompts.")
    output_tokens: Distribution = Field(description="Lengths of answers.")
    cv: Positive = plain(1.0, "Variation of the gaps: 1 is Poisson.")
    from_: Duration = Field(default=0.0, alias="from", description="When it begins.")
    until: Duration | None = optional("Its end; by default that of the scenario.")
    max_tokens: Count | None = optional("The max_tokens of its requests; none unless given.")


_EVENTS = ("fault", "drain", "undrain", "reload", "kill", "list", "unlist")


class EventSection(Section):
    """An event during the test: one of fault, drain, undrain, reload, kill, list and unlist."""

    at: Duration = Field(description="Time of the event, from the beginning of the test.")
    fault: Annotated[str, BeforeValidator(_fault)] | None = optional("A fault of the emulated replica, or recover.")
    replica: Count | None = optional("Which replica, from 1.")
    factor: Positive | None = optional("How many times as slow (slow).")
    lasts: Duration | None = optional("Duration of the fault; by default to the end.")
    drain: Name | None = optional("Name of a replica to drain: the gateway sends it no new requests.")
    undrain: Name | None = optional("Name of a drained replica that may serve again.")
    reload: str | None = optional("The new policy file of the gateway.")
    kill: Literal["decider", "relay", "store"] | None = optional(
        "A process of a gateway with workers, as if by kill -9; or the store, which stands still as if it were lost."
    )
    list: Count | None = optional("Number of a replica that replicas.json, beside the policy, lists from now on.")
    unlist: Count | None = optional("Number of a replica that it no longer lists.")

    @model_validator(mode="after")
    def _one(self) -> EventSection:
        given = [name for name in _EVENTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("says " + (" and ".join(given) or "nothing that happens") + ": give one")
        if self.fault is not None and self.replica is None:
            raise ValueError("has a fault and no replica: give its number, from 1")
        return self

    @property
    def told(self) -> str:
        """A short name for a picture: for a fault, its kind without the replica."""
        if self.fault is not None:
            return self.fault
        if self.reload is not None:
            return "reload"
        if self.kill is not None:
            return f"{self.kill} killed"
        if self.list or self.unlist:
            return f"list {self.list}" if self.list else f"unlist {self.unlist}"
        return f"drain {self.drain}" if self.drain is not None else f"undrain {self.undrain}"


class ContenderSection(Section):
    """A proxy in front of the replicas."""

    kind: Name = Field(description="tailgate, nginx, vllm-router, litellm, or a baseline of the simulator.")
    name: str | None = optional("Its name in the report; by default its kind.")
    policy: str | None = optional("Its own policy file.")
    workers: Count = plain(1, "Processes of our gateway that serve clients.")
    store: bool = plain(False, "Whether our gateway has a store, as if it shared it with others. Needs redis-server.")
    disturbed: bool = plain(True, "Whether the events happen to it.")

    @property
    def called(self) -> str:
        """The name of the contender."""
        return self.name or self.kind


def _contender(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class ScenarioFile(Section):
    """The fields of a scenario file."""

    model_config = ConfigDict(title="tailgate scenario", populate_by_name=True)

    apiVersion: Literal["tailgate/v1"] = Field(description="The version of this format.")
    kind: Literal["Scenario"] = Field(description="Always Scenario.")
    title: str = Field(description="Its result, in a sentence.")
    about: str = plain("", "The course of events, and what to look at.")
    experiment: str | None = optional("An experiment of loadtests/experiments to run as the scenario.")
    policy: str = plain("tiers.yaml", "The policy, from the folder policies.")
    replicas: Count = plain(4, "How many emulated replicas.")
    listed: list[Count] | None = optional("Replicas that replicas.json lists at the beginning; all unless given.")
    profile: Annotated[str, BeforeValidator(_profile)] = plain("default", "Their engine.")
    time_scale: Positive = plain(0.5, "Virtual seconds of the engines per real one: slower ones let two cores keep up.")
    contenders: list[Annotated[ContenderSection, BeforeValidator(_contender)]] = Field(
        default=[], description="Contenders that are tried, one after the other, on the same requests."
    )
    traffic: list[TrafficSection] = Field(default=[], description="What arrives.")
    sweep: list[Positive] = Field(default=[], description="Multiples of the rates that are tried; each is a test.")
    lasts: Duration = duration(60.0, "Time in which requests are sent.")
    warmup: Duration | Literal[0] = plain(0, "The part at the beginning that is not counted.")
    grace: Duration = duration(30.0, "Time to wait for answers after the last request.")
    patience: Duration = duration(
        60.0, "Silence after which a client gives up, before the first token or between tokens."
    )
    retries: CountOrZero = plain(0, "Most retries of a client.")
    events: list[EventSection] = Field(default=[], description="What happens meanwhile.")

    @model_validator(mode="after")
    def _whole(self) -> ScenarioFile:
        if self.experiment is None and not (self.contenders and self.traffic):
            raise ValueError("needs contenders and traffic, or the name of an experiment")
        return self

    @property
    def tests(self) -> int:
        """The number of tests: each contender at each multiple of the rates."""
        return len(self.contenders) * max(1, len(self.sweep))

    def about_s(self, part: float = 1.0) -> float:
        """Seconds for the whole scenario, at a part of its time; fewer if answers end before `grace` is over."""
        if self.experiment is not None:
            return self.lasts * part
        return self.tests * (START_S + self.lasts * part + self.grace)

    def arrivals(self, seed: int, times: float = 1.0, part: float = 1.0) -> Iterator[Arrival]:
        """The arrivals of all streams, at a multiple of their rates, for a part of the time."""
        lasts_s = self.lasts * part
        return merge(
            *(_stream(of, seed, n, times, lasts_s, part) for n, of in enumerate(self.traffic)), key=lambda a: a.at
        )


def _stream(of: TrafficSection, seed: int, n: int, times: float, lasts_s: float, part: float) -> Iterator[Arrival]:
    from_s = of.from_ * part
    until_s = min(lasts_s, lasts_s if of.until is None else of.until * part)
    share = synthetic.TierTraffic(
        tier=of.tier,
        part=1.0,
        prompt=of.prompt_tokens.lengths(),
        answer=of.output_tokens.lengths(),
        max_tokens=of.max_tokens,
        model=MODEL,
    )
    workload = synthetic.Synthetic(times * of.rate / 60, until_s - from_s, (share,), of.cv, pace.Constant())
    # The seed makes gaps the same at every rate, but different between streams.
    return (replace(arrival, at=from_s + arrival.at) for arrival in workload.arrivals(1000 * seed + n))


def shipped() -> dict[str, Path]:
    """The file of every shipped scenario, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def policy_path(name: str) -> Path:
    """The path of a policy that a scenario names."""
    return FOLDER / "policies" / name


def environment(replicas: Sequence[str]) -> dict[str, str]:
    """Names of replicas in policies of scenarios: R1, R2 and so on."""
    return {f"R{n}": url for n, url in enumerate(replicas, 1)}
