"""Claims of tailgate about its cost, and whether a run supports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from loadtests.bench import relays
from loadtests.bench.arithmetic import median_ratio
from loadtests.bench.section import Section


class State(StrEnum):
    """The verdict on a claim."""

    MET = "met"
    MISSED = "missed"
    VOID = "void"
    """There were errors, or tailgate did not run: counts as missed."""
    SKIPPED = "skipped"
    """The compared peer is missing here."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A bound on the value of `ours`: a multiple of the value of `theirs`, or absolute in the section's unit."""

    section: str
    ours: str
    theirs: str | None
    limit: float

    def __str__(self) -> str:
        return f"{self.section}: {self.ours}" + (f" / {self.theirs}" if self.theirs else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim after a run. `measured` is None if nothing could be measured."""

    claim: Claim
    state: State
    measured: float | None = None
    why: str = ""


CLAIMS = (
    Claim("requests", "tailgate", "vllm-router", 0.8),
    Claim("requests", "tailgate", "nginx", 6.0),
    Claim("requests", "tailgate+journal", "vllm-router", 1.0),
    Claim("records", "tailgate", "tailgate-records", 1.02),
    Claim("records", "tailgate+usage", "tailgate", 1.02),
    Claim("records", "tailgate+traces-1%", "tailgate", 1.03),
    Claim("records", "tailgate+traces", "tailgate", 1.15),
    Claim("latency", "tailgate", None, 1.0),
    Claim("chunks", "tailgate", "vllm-router", 0.75),
    Claim("chunks", "tailgate+tls", "tailgate", 1.25),
    Claim("requests-unpinned", "tailgate", "vllm-router", 0.8),
    Claim("chunks-unpinned", "tailgate", "vllm-router", 0.75),
    Claim("decisions", "decisions-16", "vllm-router", 0.25),
    Claim("decisions", "decisions-1000", "vllm-router", 0.5),
    Claim("decisions", "decisions-16-warm", "vllm-router", 0.35),
    Claim("fleet", "replicas-1000", None, 10.0),
    Claim("memory", "tailgate", None, 12.0),
    Claim("requests-unpinned", "tailgate-2", "tailgate", 1.4),
    Claim("chunks-unpinned", "tailgate-2", "tailgate", 1.05),
    Claim("scale", "many", "few", 1.15),
    Claim("scale", "most", "few", 1.15),
    *(Claim("chunks-open", name, "tailgate", 1.02) for name in relays.CHUNKS if name != "tailgate"),
    Claim("busiest", "tailgate-2", "tailgate", 1 / 1.7),
    *(Claim("balance", name, None, 1.25) for name in relays.CONNECTIONS),
    Claim("hop", "tailgate-2", None, 1.0),
    *(Claim("ttft", name, f"{target}:100", 1.5) for name, (target, count) in relays.OPEN.items() if count > 100),
)


CLAIMED = {(claim.section, name) for claim in CLAIMS for name in (claim.ours, claim.theirs)}
"""The targets that claims need, by section; the others are there for reference."""


def judge(claim: Claim, section: Section) -> Verdict:
    """Whether `section` supports the claim."""
    named = [claim.ours] if claim.theirs is None else [claim.ours, claim.theirs]
    for name in named:
        if name in section.errors:
            return Verdict(claim, State.VOID, why=f"{name}: {section.errors[name][0]}")
    for name in named:
        if name not in section.values:
            state = State.VOID if name.startswith("tailgate") and name in section.skipped else State.SKIPPED
            return Verdict(claim, state, why=f"{name}: {section.skipped.get(name, 'not asked for')}")
    if claim.theirs is None:
        measured = section.typical(claim.ours)
        assert measured is not None
    else:
        measured = median_ratio(section.values[claim.ours], section.values[claim.theirs])
    return Verdict(claim, State.MET if measured <= claim.limit else State.MISSED, measured)


def judge_all(sections: Mapping[str, Section]) -> list[Verdict]:
    """Every claim about what was measured."""
    return [judge(claim, sections[claim.section]) for claim in CLAIMS if claim.section in sections]


def all_hold(verdicts: list[Verdict]) -> bool:
    """False if any claim is missed or void."""
    return not any(verdict.state in (State.MISSED, State.VOID) for verdict in verdicts)
