"""Schema of a workload file, and the traffic it describes.

It is read and checked like a policy file: unknown fields are errors, and all errors are reported at once, by line and
field.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from gateway.policy.errors import did_you_mean
from gateway.policy.sections.section import Section, field, nested, optional, plain, share
from gateway.policy.sections.values import Count, CountOrZero, Duration, ModelName, Name, Rate, Share
from gateway.sim.workload import arrival_process as pace
from gateway.sim.workload import synthetic
from gateway.sim.workload.lengths import LENGTHS, LengthDistribution, Mixture, Part, Uniform

Positive = Annotated[float, Field(gt=0, le=1e6, strict=False, allow_inf_nan=False)]


def _times(value: object) -> float:
    if isinstance(value, str) and value[:-1].isdigit() and value.endswith("%"):
        value = int(value[:-1]) / 100
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1000:
        return float(value)
    raise ValueError("{value} is not a multiple of the rate: write a number such as 1.5, or 150%")


Times = Annotated[float, BeforeValidator(_times)]


class LengthsSection(Section):
    """Lengths in tokens: `like` a public trace, lognormal around a median, or uniform."""

    like: str | None = optional(f"One of {', '.join(LENGTHS)}.")
    least: Count = plain(1, "The shortest.")
    most: Count | None = optional("The longest length; needed unless `like` is given.")
    median: Positive | None = optional("Median of a lognormal; without it all lengths are equally likely.")
    sigma: Positive | None = optional("Standard deviation of the logarithm; goes with the median.")

    @model_validator(mode="after")
    def _whole(self) -> LengthsSection:
        if self.like is not None:
            if self.like not in LENGTHS:
                raise ValueError(f"{self.like} is not a known distribution: {did_you_mean(self.like, LENGTHS)}")
            if self.model_fields_set != {"like"}:
                raise ValueError("like is a whole distribution: leave the other fields out")
        elif self.most is None:
            raise ValueError("has no lengths: give most (and median and sigma), or like")
        elif self.least > self.most:
            raise ValueError(f"least is above most ({self.least} > {self.most}): swap them")
        if (self.median is None) != (self.sigma is None):
            raise ValueError("median and sigma describe a lognormal together: give both, or none")
        return self

    def lengths(self) -> LengthDistribution:
        """The distribution."""
        if self.like is not None:
            return LENGTHS[self.like]
        assert self.most is not None
        if self.median is None or self.sigma is None:
            return Uniform(self.least, self.most)
        return Mixture((Part(1.0, self.median, self.sigma),), self.most, self.least)


def _lengths(value: object) -> object:
    """A bare number is a fixed length, a bare name is a known distribution."""
    match value:
        case str():
            if value not in LENGTHS:
                raise ValueError(
                    "{value} is neither a number of tokens nor a known distribution: " + did_you_mean(value, LENGTHS)
                )
            return LengthsSection(like=value)
        case int() if not isinstance(value, bool):
            if not 1 <= value <= 10**9:
                raise ValueError("{value} is not a length: write a whole number from 1")
            return LengthsSection(least=value, most=value)
    return value


Distribution = Annotated[LengthsSection, BeforeValidator(_lengths)]


class OnOffSection(Section):
    """Bursts with quiet times between them, both of exponential duration."""

    on: Duration = Field(description="Mean length of a burst.")
    off: Duration = Field(description="Mean length of a quiet time.")
    burst: Times = Field(description="The rate in a burst, as a multiple of the mean rate.")

    @model_validator(mode="after")
    def _possible(self) -> OnOffSection:
        self.shape()
        return self

    def shape(self) -> pace.ArrivalProcess:
        """Raises ValueError if bursts leave no requests for the quiet times."""
        return pace.OnOff(self.on, self.off, self.burst)


class StepSection(Section):
    """A time of constant rate."""

    last: Duration = Field(description="How long.")
    times: Times = Field(description="The rate, as a multiple of the workload's rate.")


class DiurnalSection(Section):
    """A sine around the mean rate, from its lowest point."""

    period: Duration = Field(description="From one lowest point to the next.")
    depth: Share = share(0.5, "How far the rate falls and rises, as a share of the mean.")


class ArrivalsSection(Section):
    """The gaps between requests. At most one of on_off, steps and diurnal."""

    cv: Annotated[float, Field(ge=0, le=1e6, strict=False, allow_inf_nan=False)] = plain(
        1.0, "Coefficient of variation of the gaps: 0 is constant, 1 is Poisson, more is burstier (Gamma)."
    )
    on_off: OnOffSection | None = optional("Bursts and quiet times of random length.")
    steps: Annotated[list[StepSection], Field(min_length=1)] | None = optional("Fixed steps, repeated without end.")
    diurnal: DiurnalSection | None = optional("Days.")

    @model_validator(mode="after")
    def _one(self) -> ArrivalsSection:
        given = [name for name in ("on_off", "steps", "diurnal") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"has {' and '.join(given)}: keep one of them")
        if self.steps is not None and not any(step.times for step in self.steps):
            raise ValueError("all steps have rate 0: give one a rate above 0")
        return self

    def shape(self) -> pace.ArrivalProcess:
        """How the rate changes over time."""
        if self.on_off is not None:
            return self.on_off.shape()
        if self.steps is not None:
            return pace.Steps(tuple((step.last, step.times) for step in self.steps))
        if self.diurnal is not None:
            return pace.Diurnal(self.diurnal.period, self.diurnal.depth)
        return pace.Constant()


class TierShare(Section):
    """Traffic of one tier. Lengths and model are the workload's unless given."""

    share: Annotated[Share, Field(gt=0)] = Field(description="Share of the requests, relative to the other tiers.")
    tenants: Count = plain(1, "Number of tenants; they are named TIER-1, TIER-2 and so on.")
    skew: Annotated[float, Field(ge=0, le=10, strict=False)] = plain(0.0, "Tenant n sends in proportion to 1/n^skew.")
    prompt_tokens: Distribution | None = optional("Lengths of its prompts.")
    output_tokens: Distribution | None = optional("Lengths of its answers without a cap.")
    model: ModelName | None = optional("The model it asks for.")
    streamed: Share = field(1.0, "100%", "Share of the requests that stream.")
    max_tokens: Count | None = optional("The max_tokens of its requests; none unless given.")


class SessionsSection(Section):
    """Conversations: each prompt begins with the earlier turns."""

    share: Share = Field(description="Share of the first requests that begin a conversation.")
    turns: Annotated[float, Field(ge=1, le=1000, strict=False)] = Field(description="Mean number of its requests.")
    think: Duration = Field(description="Mean time from one request to the next.")
    system_prompts: Count = plain(1, "Number of system prompts.")
    system_tokens: CountOrZero = plain(0, "Length of a system prompt.")
    most_tokens: Count = plain(16384, "A conversation ends before its prompt and answer exceed this.")

    def sessions(self) -> synthetic.Sessions:
        """The conversations."""
        return synthetic.Sessions(
            self.share, self.turns, self.think, self.system_prompts, self.system_tokens, self.most_tokens
        )


class WorkloadFile(Section):
    """Synthetic traffic for the simulator and the load generator."""

    model_config = ConfigDict(title="tailgate workload")

    apiVersion: Literal["tailgate/v1"] = Field(description="The version of this format.")
    kind: Literal["Workload"] = Field(description="Always Workload.")
    rate: Rate = Field(description="Mean rate, such as 20/s; steps are multiples of it.")
    duration: Duration = Field(description="Time in which requests arrive.")
    arrivals: ArrivalsSection = nested(ArrivalsSection(), "The gaps between requests.")
    prompt_tokens: Distribution = Field(description="Lengths of prompts.")
    output_tokens: Distribution = Field(description="Lengths of answers without a cap.")
    model: ModelName = plain("default", "The model that requests ask for.")
    tiers: dict[Name, TierShare] = Field(min_length=1, description="The senders: tiers of the policy.")
    sessions: SessionsSection | None = optional("Conversations; none unless given.")

    def workload(self) -> synthetic.Synthetic:
        """The traffic."""
        return synthetic.Synthetic(
            rate_per_s=self.rate / 60,
            duration_s=self.duration,
            shares=tuple(self._share(name, tier) for name, tier in self.tiers.items()),
            cv=self.arrivals.cv,
            shape=self.arrivals.shape(),
            sessions=self.sessions.sessions() if self.sessions else None,
        )

    def _share(self, name: str, tier: TierShare) -> synthetic.TierTraffic:
        return synthetic.TierTraffic(
            tier=name,
            part=tier.share,
            prompt=(tier.prompt_tokens or self.prompt_tokens).lengths(),
            answer=(tier.output_tokens or self.output_tokens).lengths(),
            tenants=tier.tenants,
            skew=tier.skew,
            streamed=tier.streamed,
            max_tokens=tier.max_tokens,
            model=tier.model or self.model,
        )
