"""Reports of usage: sums by tenant, key, tier, model and time, with their prices, and the cost of what was good."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.core.policy import Policy, Prices
from gateway.observe.usage.database import UsageDatabase, UsageError
from gateway.observe.usage.hour_bytes import Hour, from_bytes
from gateway.observe.usage.metering import Cell, Sums

HOUR_S = 3600
BY = ("tenant", "key", "tier", "model", "hour", "day", "month")
_UNITS = {"h": 1, "d": 24, "w": 24 * 7}
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Question:
    """The groups and the time of a report. `since`, `until`: hours since 1970, `until` is not included."""

    by: tuple[str, ...]
    since: int
    until: int


def question(by: str, since: str, until: str, now_s: float) -> Question:
    """The question in these words. Raises ValueError with the name of the wrong option.

    `by`: names of `BY`, with commas. `since`, `until`: `7d`, `24h`, `2w` before now, or a day in UTC, `2026-11-01`.
    """
    names = tuple(filter(None, by.split(",")))
    for name in names:
        if name not in BY:
            raise ValueError(f"by: {name!r:.40} is unknown; known: {', '.join(BY)}")
    now = int(now_s // HOUR_S)
    begin = max(0, _hour("since", since, now))
    end = _hour("until", until, now) if until else now + 1
    if begin >= end:
        raise ValueError("since: is not before `until`")
    return Question(names, begin, end)


def _hour(option: str, text: str, now: int) -> int:
    ago = re.fullmatch(r"(\d{1,6})([hdw])", text)
    if ago is not None:
        return now - int(ago[1]) * _UNITS[ago[2]]
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f"{option}: {text!r:.40} is not a time: write 7d, 24h, 2w or a day, 2026-11-01") from None
    return int(day.timestamp()) // HOUR_S


def _read(paths: Sequence[Path], asked: Question) -> dict[str, list[Hour]]:
    """The sums of all gateways, by the name of their file: of the files themselves, and of the others what they know.
    Raises UsageError.
    """
    own: dict[str, list[Hour]] = {}
    told: dict[tuple[str, int], Hour] = {}
    for path in dict.fromkeys(each.resolve() for each in paths):
        database = UsageDatabase(path, must_exist=True)
        try:
            sums = list(database.read(asked.since, asked.until))
            own[database.name] = [(sums, database.fleet(asked.since, asked.until))]
            for hour, name, value in database.others(asked.since, asked.until):
                new, old = from_bytes(value, hour), told.get((name, hour))
                if old is None or _requests(new) > _requests(old):
                    told[name, hour] = new
        except (sqlite3.Error, UsageError) as error:
            raise UsageError(f"the usage file {path} cannot be read: {error}") from None
        finally:
            database.close()
    found = {name: list(hours) for name, hours in own.items()}
    for (name, _), hour_of_other in told.items():
        if name not in own:
            found.setdefault(name, []).append(hour_of_other)
    return found


def _requests(hour: Hour) -> int:
    return sum(sums.requests for _, sums in hour[0])


def report(paths: Sequence[Path], asked: Question, policy: Policy | None) -> dict[str, object]:
    """The report as plain data. `paths`: files of gateways in front of the same replicas. `policy`: has the prices;
    None: there are none. Raises UsageError.
    """
    books = _read(paths, asked)
    found: list[tuple[Cell, Sums]] = []
    served: dict[tuple[int, str], float] = {}
    for some, fleet in (hour for book in books.values() for hour in book):
        found += some
        for where, replica_s in fleet.items():
            # Every gateway counts the same replicas, so their time is not added.
            served[where] = max(replica_s, served.get(where, 0.0))
    hours: dict[str, float] = {}
    for (_, pool), replica_s in served.items():
        hours[pool] = hours.get(pool, 0.0) + replica_s / HOUR_S
    prices: Mapping[str, Prices] = {} if policy is None else policy.prices
    total, total_cost = Sums(), 0.0
    sums: dict[tuple[str, ...], Sums] = {}
    costs: dict[tuple[str, ...], float] = {}
    unpriced: set[str] = set()
    for cell, each in found:
        group = tuple(_part(name, cell) for name in asked.by)
        sums.setdefault(group, Sums()).add(each)
        total.add(each)
        cost = cost_of(each, prices.get(cell[4], prices.get("*")))
        if cost is None:
            unpriced.add(cell[4])
        else:
            costs[group] = costs.get(group, 0.0) + cost
            total_cost += cost
    return {
        "by": list(asked.by),
        "since": _written(asked.since),
        "until": _written(asked.until),
        "gateways": len(books),
        "currency": None if policy is None else policy.currency,
        "rows": [
            {**dict(zip(asked.by, group, strict=True)), **asdict(each), "cost": costs.get(group) if prices else None}
            for group, each in sorted(sums.items())
        ],
        "unpriced": sorted(unpriced),
        "total": {**asdict(total), "cost": total_cost if prices else None},
        "fleet": _fleet(total, hours, {} if policy is None else policy.replica_hours),
    }


def cost_of(sums: Sums, prices: Prices | None) -> float | None:
    """The price of these tokens; None if they have none."""
    if prices is None:
        return None if sums.prompt_tokens + sums.output_tokens else 0.0
    cached = sums.cached_tokens or 0
    read = (sums.prompt_tokens - cached) * prices.prompt + cached * prices.cached
    return (read + sums.output_tokens * prices.output) / _MILLION


def _fleet(total: Sums, hours: Mapping[str, float], prices: Mapping[str, float]) -> dict[str, object]:
    """The cost of the replicas, divided by what was good. None where prices are missing, or nothing was good."""
    replica_hours = sum(hours.values())
    is_priced = bool(hours) and hours.keys() <= prices.keys()
    cost = sum(hours[pool] * prices[pool] for pool in hours) if is_priced else None
    return {
        "replica_hours": replica_hours,
        "requests_per_replica": total.slot_s / (replica_hours * HOUR_S) if replica_hours else None,
        "cost": cost,
        "cost_per_good_request": None if cost is None or not total.good else cost / total.good,
        "cost_per_million_good_tokens": None
        if cost is None or not total.good_tokens
        else cost / total.good_tokens * _MILLION,
    }


def _part(name: str, cell: Cell) -> str:
    hour, tenant, key, tier, model = cell
    if name in ("hour", "day", "month"):
        return _written(hour)[: {"hour": 16, "day": 10, "month": 7}[name]]
    return {"tenant": tenant, "key": key, "tier": tier, "model": model}[name]


def _written(hour: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%MZ")


_FOCUS_COSTS = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")
_FOCUS_TIME = "%Y-%m-%dT%H:%M:%SZ"


def focus_rows(found: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """The rows of a report by tenant, model and day in the FinOps format (FOCUS 1.0). Raises ValueError if one has no
    cost: the format has no row without.
    """
    listed, unpriced = found["rows"], found["unpriced"]
    assert isinstance(listed, list)
    assert isinstance(unpriced, list)
    if unpriced:
        raise ValueError(f"focus: prices.models of the policy lacks {', '.join(unpriced)}, and *")
    rows: list[Mapping[str, object]] = []
    for row in listed:
        day = datetime.strptime(row["day"], "%Y-%m-%d").replace(tzinfo=UTC)
        month = day.replace(day=1)
        tokens = row["prompt_tokens"] + row["output_tokens"]
        rows.append(
            {
                **dict.fromkeys(_FOCUS_COSTS, row["cost"] or 0.0),
                "BillingAccountId": "tailgate",
                "BillingAccountName": "tailgate",
                "BillingCurrency": found["currency"],
                "BillingPeriodStart": month.strftime(_FOCUS_TIME),
                "BillingPeriodEnd": (month + timedelta(days=32)).replace(day=1).strftime(_FOCUS_TIME),
                "ChargePeriodStart": day.strftime(_FOCUS_TIME),
                "ChargePeriodEnd": (day + timedelta(days=1)).strftime(_FOCUS_TIME),
                "ChargeCategory": "Usage",
                "ChargeClass": None,
                "ChargeDescription": f"{row['model'] or 'no model'} for {row['tenant'] or 'no tenant'}",
                "ConsumedQuantity": tokens,
                "ConsumedUnit": "Tokens",
                "PricingQuantity": tokens,
                "PricingUnit": "Tokens",
                "ProviderName": "tailgate",
                "PublisherName": "tailgate",
                "InvoiceIssuerName": "tailgate",
                "ServiceCategory": "AI and Machine Learning",
                "ServiceName": "LLM inference",
                "ResourceId": row["model"] or None,
                "SubAccountId": row["tenant"],
                "SubAccountName": row["tenant"],
            }
        )
    return rows
