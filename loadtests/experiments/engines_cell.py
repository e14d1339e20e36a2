"""One engine, workload and load: the gateway beside round robin and the best static cap in hindsight.

There are two replicas, of one profile or of two. Loads are multiples of the knee: the highest rate at which 97% are
good with round robin. The best cap, and the share of the objective that a request may wait, are searched on the same
arrivals. If there are several tiers, the cap serves them strictly by priority. A run begins cold. Arrivals of its first
40 s and later ones are reported apart.

    python -m loadtests.experiments.engines_cell --profile llama3-70b-a100-tp4 --load 1.5

The cap and the knee are cached in the temporary directory, with a key of all their inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import TypeVar

from gateway.core.commands import Command, Ended
from gateway.core.estimators.histograms import most_by_chance
from gateway.core.forecast.reliability import reliability
from gateway.core.policy import AdmissionMode, AdmissionSpec, Limits, Policy, Tier
from gateway.core.results import Outcome, Record
from gateway.core.slo import Metric, Objective, Slo
from gateway.policy import load
from gateway.policy.builtin import builtin
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import ENGINES, Profile
from gateway.sim.run.decider import Overheard
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.lengths import LENGTHS, LengthDistribution, Mixture, Part
from gateway.sim.workload.synthetic import Synthetic, TierTraffic
from loadtests.experiments.bisection import highest_rate
from loadtests.experiments.cap_search import CapSearch, Key, best_of
from loadtests.quantiles import rank

COLD_S = 40.0
WARM_UP_S, WARM_LOAD = 60.0, 0.8
EMPTY_S = 10.0
"""Seconds without arrivals after the warm-up, in which the queue empties. The gateway forgets nothing in that time."""
AT_ONCE_S = 0.1
WINDOW_S, WINDOW_ANSWERS = 10.0, 50
GOOD_AT_KNEE = 0.97
FEW_SEATS = 8
"""An engine with so few sequences at a time is given more time for each of them."""
KNEE_S, KNEE_ANSWERS = 200.0, 400
KNEE_PRECISION = 1.03
REPLICAS = ("127.0.0.1:9001", "127.0.0.1:9002")
POLICIES = Path(__file__).resolve().parents[2] / "policies"
WRITTEN = {"three": POLICIES / "chat-with-tiers.yaml", "default": POLICIES / "default.yaml"}

WORKLOADS: dict[str, tuple[LengthDistribution, LengthDistribution]] = {
    "chat": (LENGTHS["azure-conversation-prompt"], LENGTHS["azure-conversation-answer"]),
    "code": (LENGTHS["azure-code-prompt"], LENGTHS["azure-code-answer"]),
    "reasoning": (LENGTHS["azure-conversation-prompt"], Mixture((Part(1.0, 1500.0, 1.0),), most=12_000)),
    "summaries": (Mixture((Part(1.0, 3000.0, 0.5),), most=7000), Mixture((Part(1.0, 80.0, 0.6),), most=400)),
}
"""Lengths of prompts and answers, by workload."""
CONTEXT = {"reasoning": 16_384}
"""Context (tokens) that a workload needs; other workloads fit every profile, or are cut to fit."""
MIXES = {"one": {"default": 1.0}, "two": {"premium": 0.3, "free": 0.7}}
MIXES["three"] = {"premium": 0.2, "standard": 0.4, "free": 0.4}
MIXES |= {"default": {"standard": 1.0}, "patient": {"patient": 1.0}}
"""Tiers by share of the requests. `default` has the objectives of policies/default.yaml, `patient` waits 6 s."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """Two engines, and their offered traffic."""

    profile: Profile
    workload: str = "chat"
    tiers: str = "one"
    load: float = 1.0
    seconds: float = 120.0
    """Seconds after the first 40."""
    second: Profile | None = None
    """Profile of the second replica, if it is unlike the first."""

    @property
    def name(self) -> str:
        """The names of the cell's engines."""
        return self.profile.name + (f" + {self.second.name}" if self.second else "")

    @property
    def max_model_len(self) -> int:
        """The context of each engine: as long as the workload needs."""
        profiles = (self.profile, self.second or self.profile)
        return CONTEXT.get(self.workload, min(profile.max_model_len for profile in profiles))

    @property
    def fleet(self) -> FleetSpec:
        """The replicas of the cell."""
        longest = self.max_model_len
        profiles = (self.profile, self.second or self.profile)
        return FleetSpec({name: replace(p, max_model_len=longest) for name, p in zip(REPLICAS, profiles, strict=True)})

    @property
    def mix(self) -> dict[str, float]:
        """The tiers of the cell, by share of the requests."""
        return MIXES[self.tiers]

    def policy(self, mode: AdmissionMode = AdmissionMode.ENFORCE) -> Policy:
        """Two replicas, learned slots."""
        rules = builtin([f"http://{replica}" for replica in REPLICAS])
        bare = replace(rules.tiers["default"], admission=AdmissionSpec())
        tiers: dict[str, Tier]
        if self.tiers in WRITTEN:
            written = load(WRITTEN[self.tiers])
            tiers = {name: replace(tier, limits=Limits(), hedge=None) for name, tier in written.tiers.items()}
        elif self.tiers == "two":
            premium = replace(bare, name="premium", priority=0, weight=4.0, slo=Slo(tpot=(Objective(0.99, 0.080),)))
            free = replace(bare, name="free", priority=1, weight=1.0, slo=Slo(ttft=(Objective(0.99, 6.0),)))
            tiers = {"premium": premium, "free": free}
        elif self.tiers == "patient":
            tiers = {"patient": replace(bare, name="patient", slo=Slo(ttft=(Objective(0.99, 6.0),)))}
        else:
            ttft_s, tpot_s = (10.0, 0.2) if self.profile.max_num_seqs <= FEW_SEATS else (2.0, 0.15)
            slo = Slo(ttft=(Objective(0.99, ttft_s),), tpot=(Objective(0.99, tpot_s),))
            tiers = {"default": replace(bare, slo=slo)}
        if mode is not AdmissionMode.ENFORCE:
            tiers = {name: replace(tier, admission=AdmissionSpec(mode)) for name, tier in tiers.items()}
        return replace(rules, tiers=tiers, default_tier=next(iter(tiers)))

    def arrivals(self, seed: int, rate_per_s: float, seconds: float) -> list[Arrival]:
        """The Poisson workload; no prompt with its answer exceeds the engine's context."""
        prompt, answer = WORKLOADS[self.workload]
        shares = tuple(
            TierTraffic(name, part, prompt, answer, tenants=8, model="any") for name, part in self.mix.items()
        )
        most = self.max_model_len
        return [
            replace(
                a, prompt_tokens=(p := min(a.prompt_tokens, most // 2)), output_tokens=min(a.output_tokens, most - p)
            )
            for a in Synthetic(rate_per_s, seconds, shares).arrivals(seed)
        ]

    def cap(self, key: Key) -> str:
        """The name of a static cap, with strict tiers if there are several."""
        slots, wait = key
        return f"{'static-cap' if self.tiers == 'one' else 'static-cap-tiers'}:slots={slots},wait={wait:g}"

    def knee_per_s(self) -> float:
        """The knee with one tier, by bisection; cached."""
        return _kept(
            f"knee {WORKLOADS[self.workload]} {replace(self, tiers='one', load=1.0, seconds=0.0)}",
            replace(self, tiers="one").find_knee,
        )

    def find_knee(self) -> float:
        """The knee under the cell's own tiers, by bisection, not cached."""

        def is_good(rate: float) -> bool:
            served = run(self, "round-robin", (1,), rate, max(KNEE_S, KNEE_ANSWERS / rate))
            return weighted(self, served) >= GOOD_AT_KNEE

        return highest_rate(is_good, 0.05, KNEE_PRECISION)


def run(
    cell: Cell,
    who: str,
    seeds: Sequence[int],
    rate: float | None = None,
    seconds: float | None = None,
    noise: float = 0.0,
) -> list[Record]:
    """All ended requests, over all seeds. `who`: auto, slots, zero, or a baseline."""
    rate = cell.load * cell.knee_per_s() if rate is None else rate
    seconds = COLD_S + cell.seconds if seconds is None else seconds
    policy = cell.policy(AdmissionMode.SHADOW if who == "zero" else AdmissionMode.ENFORCE)
    if who == "slots":
        seats = cell.profile.max_num_seqs
        policy = replace(policy, pools={name: replace(pool, slots=seats) for name, pool in policy.pools.items()})
    records: list[Record] = []
    for seed in seeds:
        records += _simulate(cell, who, policy, cell.arrivals(seed, rate, seconds), seed, seconds, noise)
    return records


def _simulate(
    cell: Cell, who: str, policy: Policy, arrivals: list[Arrival], seed: int, seconds: float, noise: float = 0.0
) -> list[Record]:
    records: list[Record] = []

    def hear(commands: list[Command], _: float) -> None:
        records.extend(command.record for command in commands if isinstance(command, Ended))

    setup = baselines.Setup(policy) if who in ("auto", "slots", "zero") else baselines.setup(who, policy)
    simulate(
        setup.policy,
        arrivals,
        seed=seed,
        fleet=cell.fleet,
        options=Options(duration_s=seconds, prompts_known=False, noise=noise),
        decider=Overheard(setup.decider(setup.policy, Random(f"{seed} controller")), hear),
    )
    return records


def run_warm(cell: Cell, seed: int, rate: float) -> list[Record]:
    """Requests of the first 40 s of `run` for a warm *auto*, a gateway that has served at `rate` requests/s before."""
    before = cell.arrivals(-seed, rate * min(1.0, WARM_LOAD / cell.load), WARM_UP_S - EMPTY_S)
    arrivals = before + [replace(a, at=a.at + WARM_UP_S) for a in cell.arrivals(seed, rate, COLD_S)]
    records = _simulate(cell, "auto", cell.policy(), arrivals, seed, WARM_UP_S + COLD_S)
    return [record for record in records if record.request.head_at >= WARM_UP_S]


def parts(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Cold and steady."""
    cold: list[Record] = []
    steady: list[Record] = []
    for record in records:
        (cold if record.request.head_at < COLD_S else steady).append(record)
    return cold, steady


def is_good(record: Record) -> bool:
    """Whether a request is good: in time, and not cut short."""
    return record.good and not record.degraded


def weighted(cell: Cell, records: Iterable[Record]) -> float:
    """Goodput of the counted records, weighted by tier; NaN without any."""
    tiers = cell.policy().tiers
    worth = offered = 0.0
    for record in records:
        if record.outcome.counts:
            weight = tiers[record.request.tier.name].weight
            offered += weight
            worth += weight * is_good(record)
    return worth / offered if offered else math.nan


def best_cap(cell: Cell, seeds: Sequence[int]) -> tuple[str, str]:
    """The best caps, cold and steady; the result is cached."""
    cold, steady = _kept(
        f"cap {WORKLOADS[cell.workload]} {cell} {list(seeds)} {cell.knee_per_s()}", lambda: _search(cell, seeds)
    )
    return cold, steady


class _Parts(CapSearch):
    """Goodput of the caps that were tried, cold and steady."""

    def __init__(self, cell: Cell, seeds: Sequence[int]) -> None:
        super().__init__(cell.profile.max_num_seqs)
        self._cell, self._seeds = cell, seeds
        self.found: tuple[dict[Key, float], dict[Key, float]] = {}, {}

    def run(self, key: Key) -> None:
        for found, records in zip(self.found, parts(run(self._cell, self._cell.cap(key), self._seeds)), strict=True):
            found[key] = weighted(self._cell, records)


def _search(cell: Cell, seeds: Sequence[int]) -> list[str]:
    search = _Parts(cell, seeds)
    search.begin()
    for found in search.found:
        search.refine(found)
    return [cell.cap(best_of(found)) for found in search.found]


def _kept(what: str, find: Callable[[], T]) -> T:
    """A cached result. `what` names all inputs of the result except the code."""
    file = Path(tempfile.gettempdir()) / "tailgate-engines" / hashlib.sha256(what.encode()).hexdigest()[:24]
    if file.exists():
        kept: T = json.loads(file.read_text())
        return kept
    found = find()
    file.parent.mkdir(exist_ok=True)
    whole = file.with_suffix(f".{os.getpid()}")  # another process may read while this one writes
    whole.write_text(json.dumps(found))
    whole.replace(file)
    return found


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of one part of a run. Times in seconds, shares 0-1, NaN where there is nothing."""

    weighted: float
    by_tier: dict[str, float]
    of_served: float
    ttft_p50: float
    ttft_p99: float
    tpot_p99: float
    at_once: float
    """Share of the refusals and timeouts before a dispatch that were told within 100 ms."""
    kept: dict[str, float]
    """Share of the windows of 10 s with 50 answers or more that keep an objective, by objective."""
    windows: dict[str, int]
    """Number of these windows."""
    calibration: float
    """Expected calibration error of P(breach) over served requests, as in the gateway's own metrics."""


def figures(cell: Cell, records: Sequence[Record]) -> Figures:
    """All figures of one part of a run."""
    counted = [record for record in records if record.outcome.counts]
    served = [record for record in counted if record.outcome is Outcome.OK]
    refused = [record for record in counted if record.outcome is not Outcome.OK and not record.attempts]
    names = cell.policy().tiers
    of = {name: [record for record in counted if record.request.tier.name == name] for name in names}
    ttft = [record.ttft_s for record in served if record.ttft_s is not None]
    tpot = [record.tpot_s for record in served if record.tpot_s is not None]
    windows = {
        f"{name} {metric.value} {objective.percentile}": _windows_kept(
            [
                record
                for record in served
                if record.request.tier.name == name
                and (metric is not Metric.E2E or tier.slo.covers(record.output_tokens))
            ],
            metric,
            objective,
        )
        for name, tier in names.items()
        for metric, objective in tier.slo.objectives()
    }
    return Figures(
        weighted=weighted(cell, counted),
        by_tier={name: share(map(is_good, tier)) for name, tier in of.items()},
        of_served=share(map(is_good, served)),
        ttft_p50=_rank(ttft, 0.5),
        ttft_p99=_rank(ttft, 0.99),
        tpot_p99=_rank(tpot, 0.99),
        at_once=share(record.e2e_s <= AT_ONCE_S for record in refused),
        kept={name: share(of) for name, of in windows.items()},
        windows={name: len(of) for name, of in windows.items()},
        calibration=_calibration(served),
    )


def _windows_kept(served: Sequence[Record], metric: Metric, objective: Objective) -> list[bool]:
    windows: dict[int, list[bool]] = defaultdict(list)
    for record in served:
        value: float | None = getattr(record, f"{metric.value}_s")
        if value is not None:
            windows[int((record.request.head_at + record.e2e_s) / WINDOW_S)].append(value > objective.threshold_s)
    return [
        sum(late) <= most_by_chance(len(late), 1.0 - objective.quantile)
        for late in windows.values()
        if len(late) >= WINDOW_ANSWERS
    ]


def _calibration(served: Sequence[Record]) -> float:
    pairs = [(record.breach, not record.good) for record in served if record.breach is not None]
    return reliability(pairs).ece if pairs else math.nan


def share(of: Iterable[bool]) -> float:
    """Share (0-1) of those that are true; NaN without any."""
    values = list(of)
    return fmean(values) if values else math.nan


def _rank(values: list[float], q: float) -> float:
    return rank(sorted(values), q) if values else math.nan


def _line(who: str, of: Figures) -> str:
    kept = " ".join(f"{name}={share:.2f}" for name, share in of.kept.items())
    tiers = " ".join(f"{name}={share:.3f}" for name, share in of.by_tier.items())
    return (
        f"{who:36} {of.weighted:8.3f} {of.of_served:7.3f} {of.ttft_p50:6.2f} {of.ttft_p99:6.2f}"
        f" {1e3 * of.tpot_p99:6.0f} {of.at_once:8.2f} {of.calibration:6.3f}  {tiers} | {kept}"
    )


def main() -> None:
    """Print a table for each combination of the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", nargs="+", default=["llama3-70b-a100-tp4"], choices=ENGINES)
    parser.add_argument("--load", nargs="+", type=float, default=[1.5], help="multiples of the knee")
    parser.add_argument("--workload", nargs="+", default=["chat"], choices=WORKLOADS)
    parser.add_argument("--tiers", nargs="+", default=["one"], choices=MIXES)
    parser.add_argument("--who", nargs="+", default=["auto", "slots", "zero", "round-robin"], help="or any baseline")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--for", type=float, default=120.0, dest="seconds", help="seconds after the first 40")
    parser.add_argument("--no-cap", action="store_true", help="do not search the best static cap")
    asked = parser.parse_args()
    seeds = range(1, asked.seeds + 1)
    for profile, workload, tiers, load_ in product(asked.profile, asked.workload, asked.tiers, asked.load):
        cell = Cell(ENGINES[profile], workload, tiers, load_, asked.seconds)
        rate = load_ * cell.knee_per_s()
        print(f"\n{profile} {workload} {tiers} {load_:g}x = {rate:.2f} requests/s", flush=True)
        heads = f"{'weighted':>8} {'served':>7} {'p50':>6} {'p99':>6} {'TPOT':>6} {'at once':>8} {'ECE':>6}"
        caps = () if asked.no_cap else best_cap(cell, seeds)
        runs = {who: parts(run(cell, who, seeds)) for who in dict.fromkeys((*asked.who, *caps))}
        for part, name in enumerate(("cold", "steady")):
            print(f"{name:36} {heads}  by tier | 10 s kept")
            for who in (*asked.who, *(caps[part : part + 1])):
                print(_line(who, figures(cell, runs[who][part])), flush=True)


if __name__ == "__main__":
    main()
