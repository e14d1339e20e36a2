"""Reads the options of `run`: traffic, keys, fields of bodies. Each function raises a ValueError that says what is
wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import orjson

from gateway.core.policy import Policy
from gateway.sim.workload.traces import Mix, mix_for
from loadtests.replay.keys import ALL, check_key, read_keys
from loadtests.replay.traffic import Traffic, trace_traffic, workload_traffic
from loadtests.report.judged import slo_of

OWN_FIELDS = {
    "model": ": give --model",
    "messages": ", from the lengths of the traffic",
    "stream": ": give streamed=50% in --workload, or stream in a trace",
    "stream_options": ", to learn the number of tokens",
    "max_tokens": ": give --length",
    "min_tokens": ": give --length",
    "ignore_eos": ": give --length",
}
"""Fields that --extra may not set, and what to use instead: the report depends on them."""


def traffic_of(
    trace: Path | None,
    workload: str | None,
    *,
    mix: str | None,
    policy: Policy | None,
    model: str | None,
    rate: float | None,
    speed: float | None,
    duration: float | None,
) -> Traffic:
    """The traffic to send. Raises PolicyErrors, too."""
    if (trace is None) == (workload is None):
        raise ValueError("name the traffic: either --trace FILE, --workload SPEC or --prompts FILE")
    if rate is not None and speed is not None:
        raise ValueError("--rate and --speed both set the speed: keep one")
    tiers = whose(mix, policy, model)
    if trace is not None:
        found = trace_traffic(trace, tiers, rate, speed, duration)
    else:
        if speed is not None:
            raise ValueError("--speed is for traces: a workload has a --rate")
        assert workload is not None
        found = workload_traffic(workload, tiers, rate, duration, mixed=mix is not None, policy=policy)
    for tier in sorted(found.tiers or ()):
        try:
            slo_of(policy, tier)
        except ValueError as error:
            raise ValueError(f"--mix {mix}: {error}" if mix is not None else str(error)) from None
    return found


def whose(mix: str | None, policy: Policy | None, model: str | None) -> Mix:
    """The tiers of traffic that names none. Raises ValueError if the policy lacks one."""
    found = mix_for(mix, policy, model)
    for tier, _ in found.tiers:
        try:
            slo_of(policy, tier)
        except ValueError as error:
            raise ValueError(f"--mix {mix}: {error}") from None
    return found


def one_target(given: Sequence[str]) -> str:
    """The URL after --target."""
    urls = [url for text in given for url in text.split(",")]
    if len(urls) != 1:
        raise ValueError(
            f"--target names {len(urls)} addresses: one target is tested at a time; test each on its own, "
            "then compare two of them by `tailgate load compare`"
        )
    return urls[0].rstrip("/")


def check_warmup(warmup_s: float, traffic: Traffic) -> None:
    """Raise ValueError if the warm-up leaves nothing to count."""
    if traffic.planned_s is not None and warmup_s >= traffic.planned_s:
        raise ValueError(
            f"--warmup {warmup_s:g} leaves nothing to count of {traffic.planned_s:g} s: "
            "give a shorter warm-up, or a longer --duration"
        )


def keys_of(given: Sequence[str], file: Path | None, tiers: Collection[str] | None) -> dict[str, tuple[str, ...]]:
    """The keys of the command line and of a file, by tier. `tiers`: the existing tiers, if known."""
    return read_keys([*(("--key", key) for key in given), *_keys_in(file)], tiers)


def keys_of_engine(given: str | None, file: Path | None) -> dict[str, tuple[str, ...]]:
    """The one key of an engine, if it has one. No part of it is read as a tier."""
    found = [(where, key) for where, key in (("--key", given or ""), *_keys_in(file)) if key]
    for where, key in found:
        check_key(where, key)
    keys = [key for _, key in found]
    if len(keys) > 1:
        raise ValueError("an engine has a single key: give it once, by --key KEY or on the only line of --keys FILE")
    return {ALL: tuple(keys)} if keys else {}


def _keys_in(file: Path | None) -> Iterator[tuple[str, str]]:
    """The place of each key, for errors, and its text."""
    if file is None:
        return
    lines = [(n, text) for n, line in enumerate(_lines(file), 1) if (text := line.strip()) and not text.startswith("#")]
    if not lines:
        raise ValueError(f"--keys: there is no key in {file}; write one [TIER=]KEY on each line")
    for n, text in lines:
        yield f"{file}:{n}", text


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"--keys: cannot read {file}: {why}; give a file with one [TIER=]KEY on each line") from None


def fields_of(text: str | None) -> dict[str, object]:
    """The JSON object of --extra; empty without the option."""
    if text is None:
        return {}
    try:
        fields = orjson.loads(text)  # NaN is refused, as the writer of bodies refuses it
    except orjson.JSONDecodeError as error:
        raise ValueError(f"--extra is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError('--extra is not a JSON object: write one such as {"temperature": 0}')
    for name, instead in OWN_FIELDS.items():
        if name in fields:
            raise ValueError(f"--extra: {name} is written by the load tester itself{instead}")
    return fields


def unnamed_tier(workload: str | None, mix: str | None, policy: Policy | None) -> str | None:
    """The name for requests without a tier. None if a policy, a mix or a workload names tiers."""
    named = mix is not None or policy is not None or (workload is not None and "=" not in workload)
    return None if named else Mix().tiers[0][0]
