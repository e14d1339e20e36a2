"""The fields of a scenario file. Read and checked as policy files are: all errors at once, by line and field."""

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
from gateway.sim.run.profiles import PROFILES
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
"""The time that replicas and a contender take to start."""
PROXIED = ("nginx", "vllm-router", "litellm")
"""Contenders besides the baselines of the simulator."""


def _profile(name: object) -> object:
    if name not in PROFILES:
        raise ValueError("{value} is no profile: " + did_you_mean(str(name), PROFILES))
    return name


def _fault(name: object) -> object:
    if name != RECOVER and name not in list(FaultKind):
        raise ValueError("{value} is no fault: " + did_you_mean(str(name), [*FaultKind, RECOVER]))
    return name


class TrafficSection(Section):
    """A stream of requests of one tier; several streams run side by side."""

    tier: Name = Field(description="Whose requests they are; that of the first stream is the one whose TTFT is shown.")
    rate: Rate = Field(description="Requests in the mean, such as 5/s.")
    prompt_tokens: Distribution = Field(description="Lengths of prompts.")
    output_tokens: Distribution = Field(description="Lengths of answers.")
    cv: Positive = plain(1.0, "Variation of the gaps: 1 is Poisson.")
    from_: Duration = Field(default=0.0, alias="from", description="When it begins.")
    until: Duration | None = optional("When it ends; with the scenario unless given.")
    max_tokens: Count | None = optional("The max_tokens of its requests; none unless given.")


class EventSection(Section):
    """Something that happens while requests are sent: one of fault, drain, undrain and reload."""

    at: Duration = Field(description="When, from the beginning of the test.")
    fault: Annotated[str, BeforeValidator(_fault)] | None = optional("A fault of the emulated replica, or recover.")
    replica: Count | None = optional("Which replica, from 1.")
    factor: Positive | None = optional("How many times as slow (slow).")
    lasts: Duration | None = optional("How long the fault lasts; to the end unless given.")
    drain: Name | None = optional("A replica that the gateway is told to send nothing new to, by its name.")
    undrain: Name | None = optional("A replica that may serve again.")
    reload: str | None = optional("The policy file that takes the place of the gateway's.")

    @model_validator(mode="after")
    def _one(self) -> EventSection:
        given = [name for name in ("fault", "drain", "undrain", "reload") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("says " + (" and ".join(given) or "nothing that happens") + ": give one")
        if self.fault is not None and self.replica is None:
            raise ValueError("has a fault and no replica: say which, from 1")
        return self

    @property
    def told(self) -> str:
        """In a word or two, for a picture; of a fault not whose it is."""
        if self.fault is not None:
            return self.fault
        if self.reload is not None:
            return "reload"
        return f"drain {self.drain}" if self.drain is not None else f"undrain {self.undrain}"


class ContenderSection(Section):
    """Somebody who stands in front of the replicas."""

    kind: Name = Field(description="tailgate, nginx, vllm-router, litellm, or a baseline of the simulator.")
    name: str | None = optional("What it is called here; its kind unless given.")
    policy: str | None = optional("A policy file of its own.")

    @property
    def called(self) -> str:
        """Its name."""
        return self.name or self.kind


def _contender(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class ScenarioFile(Section):
    """A scenario."""

    model_config = ConfigDict(title="tailgate scenario", populate_by_name=True)

    apiVersion: Literal["tailgate/v1"] = Field(description="The version of this format.")
    kind: Literal["Scenario"] = Field(description="Always Scenario.")
    title: str = Field(description="What it shows, in a sentence.")
    about: str = plain("", "What is done, and what to look at.")
    experiment: str | None = optional("An experiment of loadtests/experiments that is the scenario.")
    policy: str = plain("tiers.yaml", "The policy, from the folder policies.")
    replicas: Count = plain(4, "How many emulated replicas.")
    profile: Annotated[str, BeforeValidator(_profile)] = plain("default", "Their engine.")
    time_scale: Positive = plain(0.5, "Virtual seconds of the engines per real one: slower ones let two cores keep up.")
    contenders: list[Annotated[ContenderSection, BeforeValidator(_contender)]] = Field(
        default=[], description="Who is tried, one after the other, on the same requests."
    )
    traffic: list[TrafficSection] = Field(default=[], description="What arrives.")
    sweep: list[Positive] = Field(default=[], description="Multiples of the rates that are tried; each is a test.")
    lasts: Duration = duration(60.0, "How long requests are sent.")
    warmup: Duration | Literal[0] = plain(0, "Of that, what is not counted.")
    grace: Duration = duration(30.0, "How long answers are waited for.")
    patience: Duration = duration(60.0, "Silence after which a client gives up: no first token, or no next.")
    retries: CountOrZero = plain(0, "How often clients try again.")
    events: list[EventSection] = Field(default=[], description="What happens meanwhile.")

    @model_validator(mode="after")
    def _whole(self) -> ScenarioFile:
        if self.experiment is None and not (self.contenders and self.traffic):
            raise ValueError("needs contenders and traffic, or the name of an experiment")
        return self

    @property
    def tests(self) -> int:
        """Each contender at each multiple of the rates."""
        return len(self.contenders) * max(1, len(self.sweep))

    def about_s(self, part: float = 1.0) -> float:
        """How long all of it takes, for a part of the time; less where answers end before `grace` is over."""
        if self.experiment is not None:
            return self.lasts * part
        return self.tests * (START_S + self.lasts * part + self.grace)

    def arrivals(self, seed: int, times: float = 1.0, part: float = 1.0) -> Iterator[Arrival]:
        """All streams together, at a multiple of their rates, for a part of the time."""
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
    # Gaps are the same at every rate, and differ between streams.
    return (replace(arrival, at=from_s + arrival.at) for arrival in workload.arrivals(1000 * seed + n))


def shipped() -> dict[str, Path]:
    """Every scenario by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def policy_path(name: str) -> Path:
    """Of a policy that a scenario names."""
    return FOLDER / "policies" / name


def environment(replicas: Sequence[str]) -> dict[str, str]:
    """Names of replicas in policies of scenarios: R1, R2 and so on."""
    return {f"R{n}": url for n, url in enumerate(replicas, 1)}
