"""Reads and writes durations, rates, shares and sizes with their units.

Each reader takes a YAML value, and raises ValueError with a sentence that contains `{value}`. The caller replaces
`{value}` by the spelling in the file, so that values from the environment are never shown.
"""

from __future__ import annotations

import math
import re

_NUMBER = r"\d{1,12}(?:\.\d{1,9})?"

DURATION = rf"(?=\d)(?:({_NUMBER})h)?(?:({_NUMBER})m(?!s))?(?:({_NUMBER})s)?(?:({_NUMBER})ms)?"
RATE = rf"({_NUMBER})([kM]?)/(s|min|h)"
QUOTA = rf"({_NUMBER})([kM]?)/(day|month)"
SHARE = rf"({_NUMBER})%"
SIZE = rf"({_NUMBER}) ?(B|kB|MB|GB|KiB|MiB|GiB)"

_DURATION_S = (3600.0, 60.0, 1.0, 0.001)
_PER_MIN = {"s": 60.0, "min": 1.0, "h": 1 / 60}
_TIMES = {"": 1.0, "k": 1e3, "M": 1e6}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def seconds(value: object) -> float:
    """A duration longer than zero, such as 250ms, 2s or 1m30s, in seconds."""
    if _is_number(value):
        raise ValueError("{value} has no unit: write {value}s for seconds or {value}ms for milliseconds")
    parts = re.fullmatch(DURATION, value, re.ASCII) if isinstance(value, str) else None
    if parts is None:
        raise ValueError("{value} is not a duration: write a number with ms, s, m or h, such as 250ms, 2s or 1m30s")
    total = sum(float(part) * unit for part, unit in zip(parts.groups(), _DURATION_S, strict=True) if part)
    if total <= 0:
        raise ValueError("{value} is too short: write a duration longer than 0s, such as 250ms")
    return total


def deadline(value: object) -> float:
    """A duration in seconds, or infinity for the word `none`."""
    return math.inf if value == "none" else seconds(value)


def span(value: object) -> float:
    """A duration in seconds, or 0 for the word `none`."""
    return 0.0 if value == "none" else seconds(value)


def per_minute(value: object) -> float:
    """A rate above zero, such as 60/min or 40k/min, per minute."""
    if _is_number(value):
        raise ValueError("{value} has no unit: write {value}/min or {value}/s")
    parts = re.fullmatch(RATE, value, re.ASCII) if isinstance(value, str) else None
    if parts is None:
        raise ValueError("{value} is not a rate: write a count per s, min or h, such as 60/min or 40k/min")
    rate = float(parts[1]) * _TIMES[parts[2]] * _PER_MIN[parts[3]]
    if rate <= 0:
        raise ValueError("{value} lets nothing through: write a rate above zero, such as 60/min")
    return rate


def allowances(value: object) -> tuple[tuple[str, float], ...]:
    """A rate, a quota such as 10M/day, or a list of both: amounts above zero, by period (`min`, `day` or `month`)."""
    found: dict[str, float] = {}
    for given in value if isinstance(value, list) else [value]:
        try:
            period, amount = _allowance(given)
        except ValueError as error:
            text = str(error)
            raise ValueError(text.replace("{value}", repr(given)) if isinstance(value, list) else text) from None
        if period in found:
            raise ValueError(f"{{value}} has two limits per {period}: write one")
        found[period] = amount
    return tuple(found.items())


def _allowance(value: object) -> tuple[str, float]:
    parts = re.fullmatch(QUOTA, value, re.ASCII) if isinstance(value, str) else None
    if parts is None:
        try:
            return "min", per_minute(value)
        except ValueError as error:
            is_other = str(error).startswith("{value} is not a rate")
            raise ValueError(f"{error}, or a quota such as 10M/day or 200M/month" if is_other else error) from None
    amount = float(parts[1]) * _TIMES[parts[2]]
    if amount < 1:
        raise ValueError("{value} lets nothing through: write a quota of at least 1, such as 1000/day")
    return parts[3], amount


def write_allowances(allowed: tuple[tuple[str, float], ...]) -> str:
    """As in a policy."""
    return ", ".join(f"{amount:g}/{period}" for period, amount in allowed)


def share(value: object) -> float:
    """A share from 0 to 1, written 25% or 0.25."""
    if isinstance(value, str) and (parts := re.fullmatch(SHARE, value, re.ASCII)):
        part = float(parts[1]) / 100
    elif isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        part = float(value)
    else:
        raise ValueError("{value} is not a share: write a percentage such as 25%, or a number from 0 to 1")
    if _is_number(value) and 1 < part <= 100:
        raise ValueError("{value} is not a share: write {value}%, or a number from 0 to 1")
    if not 0 <= part <= 1:
        raise ValueError("{value} is not a share: it lies between 0% and 100%, such as 25% (or 0.25)")
    return part


def byte_count(value: object) -> int:
    """A size above zero in bytes, written 64MiB, 512KiB or 10MB."""
    if _is_number(value):
        raise ValueError("{value} has no unit: write {value}B, or use KiB, MiB, GiB")
    parts = re.fullmatch(SIZE, value, re.ASCII) if isinstance(value, str) else None
    if parts is None:
        raise ValueError("{value} is not a size: write a number with B, KiB, MiB or GiB, such as 64MiB")
    size = int(float(parts[1]) * _BYTES[parts[2]])
    if size <= 0:
        raise ValueError("{value} is too small: write a size above zero, such as 64MiB")
    return size


def write_seconds(duration_s: float) -> str:
    """The shortest way to write a duration: 250ms, 2s, 1m30s, none."""
    if math.isinf(duration_s):
        return "none"
    if duration_s < 1:
        return f"{duration_s * 1000:g}ms"
    if duration_s < 60 or duration_s % 1:
        return f"{duration_s:g}s"
    whole = int(duration_s)
    parts = ((whole // 3600, "h"), (whole // 60 % 60, "m"), (whole % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def write_share(part: float) -> str:
    """A share as text: 0.25 as 25%."""
    return f"{part * 100:g}%"


def write_size(size: int) -> str:
    """Bytes in the largest binary unit that divides them: 64MiB."""
    for unit in ("GiB", "MiB", "KiB"):
        if size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
