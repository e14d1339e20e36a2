"""Makes `report.json` from rows: all figures of a load test, in one document with a versioned schema."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.core.policy import Value
from gateway.core.slo import Metric, Objective, Slo
from loadtests.replay.again import Newcomers
from loadtests.replay.columns import FILE, Rows, percentiles
from loadtests.replay.gaps import middle_s
from loadtests.replay.request import Outcome
from loadtests.report.judged import ERRORS, Held, Judged, apart, judge, misses, slo_of
from loadtests.report.over_load import over_load
from loadtests.report.run_file import RunFile
from loadtests.report.timeline import per_s, timeline
from loadtests.report.trust import fell_behind
from loadtests.waits import above

FORMAT = "tailgate-loadtest-report"
VERSION = 2
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}
METRICS = ("ttft", "tpot", "e2e", "queue")
CURVES = ("ttft", "e2e")

Report = dict[str, Any]


def report(run: RunFile, rows: Rows, policy: Held | None) -> Report:
    """All figures. `trusted` is false if the generator fell behind: then it measured itself as much as the target.

    Raises ValueError if the policy does not fit or rows are missing.
    """
    about = run.about
    if (missing := run.played.ended - len(rows)) > 0:
        raise ValueError(
            f"{FILE} lacks {missing:,} of the {run.played.ended:,} requests that ended, which is a bug of "
            "the load tester, so nothing is reported"
        )
    counts = rows["due_s"] >= about.warmup_s
    chosen = rows[counts]
    if not len(chosen):
        after = f" after the warm-up of {about.warmup_s:g} s" if about.warmup_s else ""
        before = " before the test was stopped" if run.played.interrupted else ""
        raise ValueError(f"no request was due{after}{before}: there is nothing to report")
    for column, names in (("tier", run.tiers), ("reason", run.reasons), ("replica", run.replicas)):
        if int(rows[column].max()) >= len(names):
            raise ValueError(
                f"{FILE} has a {column} without a name in run.json: the two files are from different tests"
            )
    generator = _generator(run, chosen)
    everything = judge(rows, run.tiers, policy)
    judged = everything.of(counts)
    seconds = run.played.sending_s - about.warmup_s
    times = about.warmup_s, run.played.sending_s
    # Figures of all tiers are computed beside those of each tier: NumPy lets two threads work at once.
    with ThreadPoolExecutor(1) as beside:
        totals = beside.submit(_totals, judged, run, seconds, policy)
        rates = beside.submit(_rates, everything, run)
        over_time = beside.submit(timeline, everything, _weights(rows, run, policy), *times)
        loads = beside.submit(over_load, everything, *times)
        replicas = beside.submit(_replicas, judged, run)
        prompts = beside.submit(_prompts, chosen)
        tiers_over_time = {
            name: timeline(part, _weights(part.rows, run, policy), *times)
            for name, part in _by_tier(everything, run).items()
        }
        by_tier = _by_tier(judged, run)
        tiers = {name: _tier(name, part, run, policy) for name, part in by_tier.items()}
        curves = {name: _curves(part.rows) for name, part in by_tier.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "about": _about(run),
        "trusted": fell_behind(generator) is None and not run.played.gave_up and not about.condemned,
        "complete": not run.played.interrupted,
        "seconds": seconds,
        "generator": generator,
        "totals": totals.result() | rates.result(),
        "tiers": {name: of | {"over_time": tiers_over_time[name]} for name, of in tiers.items()},
        "replicas": replicas.result(),
        "messages": run.messages,
        "turns": _turns(judged, run),
        "prompts": prompts.result(),
        "over_time": over_time.result(),
        "over_load": loads.result(),
        "curves": curves,
    }


def _about(run: RunFile) -> Report:
    about = run.about
    return {
        "target": about.target,
        "traffic": about.traffic,
        "seed": about.seed,
        "started_at": about.started_at,
        "mode": "open loop" if about.clients is None else "closed loop",
        "clients": about.clients,
        "retries": about.retries,
        "policy": about.policy,
        "unnamed_tier": about.unnamed_tier,
        "probed": about.probed,
        "length": about.length,
        "shards": about.shards,
        "condemned": about.condemned,
        "left_out": about.left_out,
        "own_words": about.own_words,
        "warmup_s": about.warmup_s,
        "planned_s": about.planned_s,
        "empty_rows": run.played.empty_rows,
        "wrong_row": run.played.wrong_row,
        "gave_up": run.played.gave_up,
    }


def _generator(run: RunFile, rows: Rows) -> Report:
    p50, p99, p999, most = percentiles(rows["late_s"], (0.5, 0.99, 0.999, 1.0))
    return {
        "late_p50_s": p50,
        "late_p99_s": p99,
        "late_p999_s": p999,
        "late_max_s": most,
        "max_late_s": run.about.max_late_s,
        "loop_wait_p99_above_s": above(run.played.lag, 0.99),
        "loop_wait_max_above_s": above(run.played.lag, 1.0),
        "cpu": per_s(run.played.cpu_s, run.played.sending_s),
        "chunks_per_s": per_s(run.played.chunks, run.played.sending_s),
        "most_connections": run.played.most_connections,
        "most_under_way": run.played.most_under_way,
        "most_memory_bytes": run.played.most_memory_bytes,
    }


def _totals(judged: Judged, run: RunFile, seconds: float, policy: Held | None) -> Report:
    rows = judged.rows
    offered, counted = len(rows), _count(judged.counted)
    finished, good = _count(judged.finished), _count(judged.good)
    weights = _weights(rows, run, policy)
    return {
        "offered": offered,
        "counted": counted,
        "finished": finished,
        "good": good,
        "goodput": _ratio(good, counted),
        "weighted_goodput": _ratio(float(weights[judged.good].sum()), float(weights[judged.counted].sum())),
        "offered_per_s": per_s(offered, seconds),
        "good_per_s": per_s(good, seconds),
        "sent_again": int((rows["tries"].astype(np.int64) - 1).sum()),
        "cached": _cached(rows),
        "latencies": _latencies(rows[judged.finished]),
        "itl": _itl(run, run.gaps),
    }


def _rates(everything: Judged, run: RunFile) -> Report:
    """Throughput: answers that were complete while requests were sent, whenever they were due."""
    from_s, until_s = run.about.warmup_s, run.played.sending_s
    done = everything.rows[everything.finished]
    ended_s = done["due_s"] + done["e2e_s"]
    inside, seconds = (ended_s >= from_s) & (ended_s < until_s), until_s - from_s
    return {
        "answered_per_s": per_s(_count(inside), seconds),
        "output_tokens_per_s": per_s(int(done["output_tokens"][inside].sum()), seconds),
    }


def _tier(name: str, judged: Judged, run: RunFile, policy: Held | None) -> Report:
    rows = judged.rows
    counted, finished, good = _count(judged.counted), _count(judged.finished), _count(judged.good)
    slo = slo_of(policy, name)
    done = rows[judged.finished]
    return {
        "weight": _weight(policy, name),
        "value": _value(policy, name).value,
        "offered": len(rows),
        "counted": counted,
        "finished": finished,
        "good": good,
        "goodput": _ratio(good, counted),
        "goodput_of_finished": _ratio(good, finished),
        "objectives": [_objective(metric, objective, slo, judged) for metric, objective in slo.objectives()],
        "cached": _cached(done),
        "latencies": _latencies(done),
        "itl": _itl(run, [name]),
        "misses": misses(judged, run.reasons),
        "sheds": _sheds(rows[judged.counted], run.reasons),
        "errors": {label: count for outcome, label in ERRORS.items() if (count := _count(rows["outcome"] == outcome))},
        "apart": apart(judged, run.reasons),
        "served_as": {
            run.tiers[number]: _count(rows["served_tier"] == number)
            for number in sorted(np.unique(rows["served_tier"]), key=lambda number: run.tiers[number])
            if number
        },
        "newcomers": asdict(run.played.newcomers.get(name, Newcomers())),
        "retry_after": {reason: asdict(of) for reason, of in run.played.told.get(name, {}).items()},
    }


def _objective(metric: Metric, objective: Objective, slo: Slo, judged: Judged) -> Report:
    """The share of answers that met an objective, among the answers that it concerns and among all counted requests.

    The shares follow the gateway's rules: TTFT and TPOT of streams, e2e of outputs up to `e2e_up_to_tokens`; a request
    without an answer misses all.
    """
    rows, threshold_s = judged.rows, objective.threshold_s
    values = rows[f"{metric.value}_s"]
    up_to = slo.e2e_up_to_tokens if metric is Metric.E2E else None
    about = np.ones(len(rows), np.bool_) if metric is Metric.E2E else rows["streamed"] != 0
    if up_to is not None:
        about &= rows["output_tokens"] <= up_to
    if metric is Metric.TPOT:
        about &= ~(judged.finished & np.isnan(values))  # answers of one token have no TPOT
    counted = about & judged.counted
    good = _count(counted & judged.finished & (values <= threshold_s))
    measured = percentiles(values[about & judged.finished], (objective.quantile,))[0]
    return {
        "metric": metric.value,
        "quantile": objective.quantile,
        "threshold_s": threshold_s,
        "up_to_tokens": up_to,
        "measured_s": measured,
        "met": None if measured is None else measured <= threshold_s,
        "counted": _count(counted),
        "good": good,
        "goodput": _ratio(good, _count(counted)),
    }


def _latencies(finished: Rows) -> Report:
    """Latencies of finished requests, in seconds; each with its number of requests."""
    found = {}
    for metric in METRICS:
        values = finished[f"{metric}_s"]
        measured = zip(SHARES, percentiles(values, list(SHARES.values())), strict=True)
        found[metric] = {"n": _count(~np.isnan(values))} | dict(measured)
    return found


def _itl(run: RunFile, tiers: Sequence[str] | Mapping[str, object]) -> Report:
    """Gaps between pieces of content of streams after the warm-up, from histograms (at most 1% off)."""
    counts: dict[int, int] = {}
    for tier in tiers:
        for bucket, count in run.gaps.get(tier, {}).items():
            counts[bucket] = counts.get(bucket, 0) + count
    total = sum(counts.values())
    found: Report = {"n": total}
    for name, share in SHARES.items():
        rank, seen, value = math.ceil(share * total), 0, None
        for bucket in sorted(counts):
            seen += counts[bucket]
            if seen >= rank:
                value = middle_s(bucket)
                break
        found[name] = value
    return found


def _sheds(rows: Rows, reasons: list[str]) -> Report:
    """Refusals by reason: their number, and the number with a Retry-After."""
    shed = rows[rows["outcome"] == Outcome.SHED]
    found = {}
    for number in np.unique(shed["reason"]):
        own = shed[shed["reason"] == number]
        after_p50_s, after_p95_s = percentiles(own["e2e_s"], (0.5, 0.95))
        found[reasons[number]] = {
            "count": len(own),
            "with_retry_after": _count(~np.isnan(own["retry_after_s"])),
            "after_p50_s": after_p50_s,
            "after_p95_s": after_p95_s,
        }
    return dict(sorted(found.items(), key=lambda item: (-int(item[1]["count"] or 0), item[0])))


def _replicas(judged: Judged, run: RunFile) -> Report:
    """Requests by replica, if the target names the replica."""
    rows = judged.rows
    found = {}
    for number in np.unique(rows["replica"]):
        if number:
            own = rows[(rows["replica"] == number) & judged.finished]
            p50, p99 = percentiles(own["ttft_s"], (0.5, 0.99))
            found[run.replicas[number]] = {"finished": len(own), "ttft_p50_s": p50, "ttft_p99_s": p99}
    return dict(sorted(found.items()))


def _prompts(rows: Rows) -> Report:
    """Wanted and counted tokens of prompts and answers, if the target reports counts."""
    known = rows[rows["prompt_counted"] > 0]
    finished = rows[rows["outcome"] == Outcome.FINISHED]
    streamed, capped = finished[finished["chunks"] > 0], finished[finished["output_wanted"] > 0]
    return {
        "prompt_tokens": int(known["prompt_tokens"].sum()),
        "prompt_tokens_counted": int(known["prompt_counted"].sum()),
        "output_tokens_wanted": int(finished["output_wanted"].sum()),
        "output_tokens": int(finished["output_tokens"].sum()),
        "shorter_answers": _count(finished["output_tokens"] < finished["output_wanted"]),
        "longer_answers": _count(capped["output_tokens"] > capped["output_wanted"]),
        "fewer_tokens_than_pieces": _count(finished["output_tokens"] < finished["chunks"]),
        "tokens_per_piece": _ratio(float(streamed["output_tokens"].sum()), float(streamed["chunks"].sum())),
    }


def _turns(judged: Judged, run: RunFile) -> Report:
    """Latencies and cached tokens by turn of conversations; empty without any."""
    rows = judged.rows
    found: Report = {}
    for number in np.unique(rows["turn"]) if rows["turn"].max() > 1 else ():
        own = rows[(rows["turn"] == number) & judged.finished]
        p50, p99 = percentiles(own["ttft_s"], (0.5, 0.99))
        found[str(number)] = {"finished": len(own), "ttft_p50_s": p50, "ttft_p99_s": p99, "cached": _cached(own)}
    return {"by_turn": found, "sent": run.played.turns, "lost": run.played.turns_lost}


def _cached(rows: Rows) -> float | None:
    """Share of the prompt tokens that engines found in their prefix caches; None if no answer reports it."""
    told = rows[~np.isnan(rows["prompt_cached"])]
    return _ratio(float(told["prompt_cached"].sum(dtype=np.float64)), float(told["prompt_counted"].sum()))


def _curves(rows: Rows) -> Report:
    """Latencies at quantiles that approach 1, for the plot of percentiles."""
    found: Report = {}
    finished = rows[rows["outcome"] == Outcome.FINISHED]
    for metric in CURVES:
        values = finished[f"{metric}_s"]
        count = _count(~np.isnan(values))
        if count:
            nines = np.linspace(0.0, math.log10(max(2, count)), 80)
            shares = [*(1.0 - 10.0 ** -float(n) for n in nines[1:-1]), 1.0 - 1.0 / max(2, count)]
            found[metric] = {"shares": shares, "seconds": percentiles(values, shares)}
    return found


def _by_tier(judged: Judged, run: RunFile) -> dict[str, Judged]:
    numbers = sorted(np.unique(judged.rows["tier"]), key=lambda number: run.tiers[number])
    return {run.tiers[number]: judged.of(judged.rows["tier"] == number) for number in numbers}


def _weights(rows: Rows, run: RunFile, policy: Held | None) -> npt.NDArray[np.float64]:
    """The worth of each row: its tier's weight; with `value: tokens`, times its tokens over the mean of its tier."""
    worth = np.array([_weight(policy, name) for name in run.tiers])[rows["tier"]]
    for number, name in enumerate(run.tiers):
        own = rows["tier"] == number
        if _value(policy, name) is Value.TOKENS and own.any():
            tokens = rows["prompt_tokens"][own].astype(np.float64) + rows["output_wanted"][own]
            worth[own] *= tokens / max(1.0, tokens.mean())
    return worth


def _value(policy: Held | None, tier: str) -> Value:
    return policy.tiers[tier].value if policy is not None and tier in policy.tiers else Value.REQUEST


def _weight(policy: Held | None, tier: str) -> float:
    return policy.tiers[tier].weight if policy is not None and tier in policy.tiers else 1.0


def _count(mask: Any) -> int:
    return int(np.count_nonzero(mask))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
