"""Prints a plan: its figures, and the waits with fewer and with more replicas."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.output import counted
from gateway.cli.tables import interval, new_table, show
from gateway.plan.knee import Knee, Tried
from gateway.plan.queueing import Waits
from gateway.plan.sizing import Plan, Point
from gateway.plan.terms import Cost
from gateway.policy.sections.units import write_share

BAR = 24
FOR_EVER = "for ever"
SIX_NINES = 0.999999
"""Availability above this is shown as this: half a minute of outage per year. Shorter outages have other causes than
single replicas.
"""
TITLE = "Waits by Erlang C in one queue for all (█), and apart: with a queue at each replica (░)"


def print_plan(found: Plan, out: Console) -> None:
    """Print the whole plan."""
    for name, value in _figures(found):
        _line(out, name, value)
    out.print()
    if found.curve and found.load.slots is not None:
        show(out, _curve(found), TITLE)


def print_knee(found: Knee, spare: int, cost: Cost | None, out: Console) -> None:
    """Print the result of a search, and every fleet that it tried."""
    for name, value in _found(found, spare, cost):
        _line(out, name, value)
    out.print()
    show(out, _tries(found), _tries_title(found))
    if found.by_slots is not None:
        out.print()
        show(out, _curve(found.by_slots), f"{TITLE}, if a slot stayed as fast at any load")


def _tries_title(found: Knee) -> str:
    seeds = found.needed.goodput.n
    known = "intervals over seeds in brackets, ?: the interval contains the target" if seeds > 1 else "no intervals"
    return f"Every fleet that was tried ({counted(seeds, 'seed')}: {known}; bars from {_foot(found):g} to 1)"


def _foot(found: Knee) -> float:
    """Goodput (0-1) at the left end of the bars. It is chosen so that the target is at nine tenths of a full bar."""
    return max(0.0, 1.0 - 10.0 * (1.0 - found.target))


def _found(found: Knee, spare: int, cost: Cost | None) -> Iterator[tuple[str, str]]:
    needed, limit = found.needed, found.limit
    spares = f" and {spare} spare" if spare else ""
    yield "replicas", f"{_fleet(needed)}{spares}: goodput {_goodput(needed)} at {needed.rate_per_s:,.4g}/s"
    knee = f"{limit.rate_per_s:,.4g}/s, {found.per_replica_per_s:,.4g}/s by replica"
    most = f"no less than {knee}, the highest rate that was tried: do the limits of tenants bind?"
    yield "knee", f"{knee}: from there on below {found.target:g}" if found.limit_is_known else most
    yield (
        "in flight",
        f"{needed.in_system:,.4g} requests; {needed.slots:.0%} of the slots, {needed.kv:.0%} of the KV cache",
    )
    if needed.cached:
        yield "cached", f"{needed.cached:.0%} of the prompt tokens were in prefix caches"
    if found.by_slots is not None:
        yield from _needs(found.by_slots)
    for lost in found.when_lost:
        pool = lost.lost or ""
        of = f" of {pool}" if len(lost.replicas) > 1 else ""
        yield "one lost", f"{_goodput(lost)} without one{of}; {_enough(found.replicas_one_lost[pool])} enough then, too"
    if cost is not None:
        yield "cost", _cost(cost)


def _enough(replicas: int) -> str:
    return f"{replicas} {'is' if replicas == 1 else 'are'}"


def _tries(found: Knee) -> Table:
    table = new_table(
        "replicas", "one lost", "requests/s", "goodput", "", "", "busy", "slots", "KV", "cached", "in flight"
    )
    table.columns[4].justify = "left"
    foot = min(0.99, _foot(found))
    for row in found.tried:
        table.add_row(
            _fleet(row),
            "" if row.lost is None else row.lost,
            f"{row.rate_per_s:,.4g}",
            _goodput(row),
            "█" * round(max(0.0, row.goodput.value - foot) / (1.0 - foot) * BAR),
            "enough" if row.reached else "",
            *(f"{share:.0%}" for share in (row.busy, row.slots, row.kv, row.cached)),
            f"{row.in_system:,.4g}",
            style="bold" if row is found.needed else None,
        )
    return table


def _fleet(tried: Tried) -> str:
    if len(tried.replicas) == 1:
        return str(tried.total)
    return f"{tried.total} (" + ", ".join(f"{n} {pool}" for pool, n in tried.replicas.items()) + ")"


def _goodput(tried: Tried) -> str:
    return interval(tried.goodput) + ("" if tried.certain else "?")


def _cost(cost: Cost) -> str:
    tokens = cost.per_million_output_tokens
    millions = f"{cost.per_million_requests:,.4g} per million requests"
    millions += "" if tokens is None else f", {tokens:,.4g} per million output tokens"
    pools = ", ".join(f"{pool} {price:,.2f}" for pool, price in cost.per_hour_by_pool.items())
    return f"{cost.per_hour:,.2f} per hour{f' ({pools})' if pools else ''}; {millions}"


def _line(out: Console, name: str, value: str) -> None:
    out.print(Text(f"{name:<12}", style="bold").append(value, style="not bold"))


def _figures(found: Plan) -> Iterator[tuple[str, str]]:
    load = found.load
    if found.in_flight is not None:
        yield "in flight", f"{found.in_flight:,.6g} requests: {load.rate_per_s:,g}/s x {load.latency_s:g} s"
    if found.capacity_per_s is not None:
        yield "one replica", f"{found.capacity_per_s:,.4g} requests/s when it is full"
    yield from _needs(found)
    if found.replicas is None:
        yield "replicas", "how many is not known: give --slots, or --per-replica"
        return
    full = found.planned is not None and found.planned.utilization >= 1.0
    hint = ": leave room for chance, as with --utilization 0.7" if full else ""
    spare = f"{found.replicas_needed} and {load.terms.spare} spare; " if load.terms.spare else ""
    yield "replicas", f"{found.replicas}: {spare}{_state(found.planned)}{hint}"
    left = "nothing is left" if found.one_lost is None else _state(found.one_lost)
    waits = "" if load.p99_wait_s is None else f" and wait at most {time_of(load.p99_wait_s)} (p99)"
    enough = f"{found.replicas_one_lost} are at {write_share(load.utilization)} or less{waits} with one lost"
    yield "one lost", f"{left}; {enough}"
    if found.cost is not None:
        yield "cost", _cost(found.cost)
    if found.availability is not None:
        up = found.availability
        yield "all up", f"{_nines(up.all_up)} of the time ({up.replica:g}^{found.replicas})"
        yield "enough up", f"{_nines(up.enough_up)} of the time; at least one: {_nines(up.any_up)}"


def _needs(found: Plan) -> Iterator[tuple[str, str]]:
    """Each way of counting, with the number of replicas that it gives."""
    load = found.load
    at = f" x {write_share(load.utilization)}" if load.utilization < 1.0 else ""
    if found.replicas_by_slots is not None and load.slots is not None:
        how = f"{found.in_flight:,.6g} / ({counted(load.slots, 'slot')}{at})"
        yield "by slots", f"{counted(found.replicas_by_slots, 'replica')}: {how}"
    if found.replicas_by_rate is not None:
        how = f"{load.rate_per_s:,g}/s / ({load.per_replica_per_s:,g}/s{at})"
        yield "by rate", f"{counted(found.replicas_by_rate, 'replica')}: {how}"
    if found.replicas_by_wait is not None and load.p99_wait_s is not None:
        yield "by wait", f"{counted(found.replicas_by_wait, 'replica')}: p99 at most {time_of(load.p99_wait_s)}"


def _curve(found: Plan) -> Table:
    table = new_table("replicas", "busy", "have to wait", "", "mean", "p95", "p99", "waiting", "apart: mean", "p99")
    table.columns[3].justify = "left"
    for row in found.curve:
        one, apart = row.waits, row.apart
        table.add_row(
            f"{row.replicas}",
            f"{row.utilization:.1%}",
            f"{_p_wait(one):.2%}",
            _bar(_p_wait(one), _p_wait(apart)),
            FOR_EVER if one is None else time_of(one.mean_s),
            FOR_EVER if one is None else time_of(one.p95_s),
            FOR_EVER if one is None else time_of(one.p99_s),
            FOR_EVER if one is None else _count(one.queue),
            FOR_EVER if apart is None else time_of(apart.mean_s),
            FOR_EVER if apart is None else time_of(apart.p99_s),
            style="bold" if row.replicas == found.replicas else None,
        )
    return table


def _p_wait(waits: Waits | None) -> float:
    return 1.0 if waits is None else waits.p_wait


def _bar(one: float, apart: float) -> str:
    """A bar for the shares of requests that wait: dark for one queue, light for separate queues, whose share is never
    smaller.
    """
    dark = round(one * BAR)
    return "█" * dark + "░" * (round(apart * BAR) - dark)


def _count(requests: float) -> str:
    return f"{requests:,.3g}" if requests >= 1e-3 else "0"


def _state(at: Point | None) -> str:
    assert at is not None
    busy = f"{at.utilization:.1%} busy"
    if at.utilization >= 1.0 and at.waits is None:
        return f"{busy}, so that waits grow for ever"
    return busy if at.waits is None else f"{busy}, p99 of waits {time_of(at.waits.p99_s)}"


def time_of(seconds: float) -> str:
    """A time as text: `0`, `8.2 ms`, `2.43 s`. Less than a microsecond is shown as 0."""
    if seconds < 1e-6:
        return "0"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1.0 else f"{seconds:,.3g} s"


def _nines(share: float) -> str:
    """A share with enough digits to differ from 100%."""
    if share == 1.0:
        return "100%"
    if share > SIX_NINES:
        return f"over {SIX_NINES:.4%}"
    digits = next(n for n in range(2, 16) if f"{share:.{n}%}" != f"{1:.{n}%}")
    return f"{share:.{digits + 1}%}"
