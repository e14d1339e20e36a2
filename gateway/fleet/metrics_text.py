"""Load signals out of an engine's Prometheus page.

This runs once a second per replica in the process that serves requests. It therefore finds the few wanted lines with
`str.find` and does not parse the page (50 kB of histograms on vLLM 0.32). Series of one metric are combined thus:

    waiting, running,
    preemptions,
    cached tokens       the sum over the engines (data-parallel ranks) behind one address
    KV use              the largest: requests are preempted in the engine that is fullest
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gateway.core.policy import EngineKind
from gateway.core.request import Sample
from gateway.fleet.fault import Failed, ReadFault
from gateway.wire.numbers import MAX_COUNT, count, finite


@dataclass(frozen=True, slots=True)
class _Names:
    """Metric names of one engine; of `kv` the first one present counts."""

    waiting: str
    running: str
    kv: tuple[str, ...] = ()
    preemptions: str | None = None
    cache_queries: str | None = None
    """Prompt tokens looked up in the prefix cache,"""
    cache_hits: str | None = None
    """and found there."""
    adapters: str | None = None
    """LoRA adapters with requests, in labels; of several series the latest value counts."""


_NAMES: dict[EngineKind, _Names] = {
    # gpu_cache_usage_perc was the name before kv_cache_usage_perc; some versions export both.
    EngineKind.VLLM: _Names(
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:lora_requests_info",
    ),
    # Its cache_hit_rate is that of the last batch.
    EngineKind.SGLANG: _Names(
        "sglang:num_queue_reqs",
        "sglang:num_running_reqs",
        ("sglang:token_usage",),
        cache_queries="sglang:prompt_tokens_total",
        cache_hits="sglang:cached_tokens_total",
    ),
    EngineKind.TGI: _Names("tgi_queue_size", "tgi_batch_current_size"),
}

# Text after a metric's name: labels (quoted values escape \, " and newline), a value, a timestamp.
# Possessive throughout: no page, however odd, makes it backtrack.
_REST = re.compile(
    r"""
    (?P<labels> \{ [ \t]*+ (?: [a-zA-Z_]\w*+ = "(?:[^"\\\n]|\\.)*+" [ \t]*+ ,? [ \t]*+ )*+ \} )?+
    [ \t]*+ (?P<value> [^\s{}]++ )
    (?: [ \t]++ [-+.\deE]++ )?+
    [ \t\r]*+ (?: \n | \Z )
    """,
    re.VERBOSE,
)
_PAIR = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\.)*)"')
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:")

# Floats round: a full cache may read a hair above 1. Far above 1 it is not a fraction.
_FULL = 1.001
# Series of one metric: an engine has a few for each data-parallel rank. A page of nothing else would hold up tokens.
_MAX_SERIES = 1000


def scrapes(engine: EngineKind) -> bool:
    """Whether this engine has a page that can be read."""
    return engine in _NAMES


def read_page(engine: EngineKind, body: bytes) -> Sample | Failed:
    """`read_sample` of a page as it comes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Failed(ReadFault.GARBAGE, "the page is not UTF-8")
    return read_sample(engine, text)


def read_sample(engine: EngineKind, text: str) -> Sample | Failed:
    """The load that `text`, a page of `engine`, states. A value that is absent or NaN is None.

    Failed(GARBAGE) names the metric whose line is malformed, infinite, negative or out of range. Out of range is KV use
    above 1, a sum that is no 64-bit count, or more than 1000 series. Failed(EMPTY) is a page without any of the wanted
    metrics. An engine without metrics is an empty `Sample`.
    """
    names = _NAMES.get(engine)
    if names is None:
        return Sample()
    try:
        waiting = _series(engine, text, names.waiting)
        running = _series(engine, text, names.running)
        preemptions, queries, hits = (
            _total(name, _series(engine, text, name)) if name else None
            for name in (names.preemptions, names.cache_queries, names.cache_hits)
        )
        kv = next(filter(None, (_series(engine, text, name) for name in names.kv)), [])
        if not (waiting or running or kv):
            return Failed(ReadFault.EMPTY, f"no metric of {engine} on the page, such as {names.running}")
        kv_fraction = max((value for value in kv if not math.isnan(value)), default=None)
        if kv_fraction is not None and kv_fraction > _FULL:
            raise _Garbage(f"{names.kv[0]} is above 1")
        limit, active = (None, None) if names.adapters is None else _adapters(engine, text, names.adapters)
        return Sample(
            max_adapters=limit,
            active_adapters=active,
            waiting=_total(names.waiting, waiting),
            running=_total(names.running, running),
            kv_fraction=None if kv_fraction is None else min(kv_fraction, 1.0),
            preemptions=preemptions,
            cache_queries=queries,
            cache_hits=hits,
        )
    except _Garbage as garbage:
        return Failed(ReadFault.GARBAGE, str(garbage))


class _Garbage(Exception):
    """A metric cannot be read; it says which and why. Never leaves this file."""


def _adapters(engine: EngineKind, text: str, name: str) -> tuple[int | None, tuple[str, ...] | None]:
    """Adapters in one batch at most, and those with requests.

    vLLM writes them into labels, and a timestamp as the value. Series of earlier steps stay on the page.
    """
    latest, labels = -1.0, ""
    for written, value in _lines(engine, text, name):
        if value > latest:
            latest, labels = value, written
    if latest < 0:
        return None, None
    pairs: dict[str, str] = dict(_PAIR.findall(labels))
    limit = pairs.get("max_lora", "")
    listed = f"{pairs.get('running_lora_adapters', '')},{pairs.get('waiting_lora_adapters', '')}".split(",")
    active = dict.fromkeys(adapter.strip() for adapter in listed if adapter.strip())
    return int(limit) if limit.isdecimal() and 0 < len(limit) < 10 and int(limit) else None, tuple(active)


def _series(engine: EngineKind, text: str, name: str) -> list[float]:
    """Every value of `name` that counts; [] if the page does not have it."""
    return [value for _, value in _lines(engine, text, name)]


def _lines(engine: EngineKind, text: str, name: str) -> list[tuple[str, float]]:
    """Labels and value of each series of `name` that counts."""
    values: list[tuple[str, float]] = []
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        # A whole name at the start of a line, not a comment, a label value or a longer name.
        if (at == 0 or text[at - 1] == "\n") and text[end : end + 1] not in _NAME_CHARS:
            line = _REST.match(text, end)
            if line is None:
                raise _Garbage(f"the line of {name} is malformed")
            if len(values) == _MAX_SERIES:
                raise _Garbage(f"{name} has more than {_MAX_SERIES} series")
            if engine is not EngineKind.SGLANG or _counts(line["labels"] or ""):
                values.append((line["labels"] or "", _number(name, line["value"])))
        at = text.find(name, end)
    return values


def _counts(labels: str) -> bool:
    """Whether an SGLang series is a total that no other series repeats.

    With priority scheduling the total has `priority=""` and a series per priority repeats it in parts. With pipeline
    parallelism every stage reports the same requests (sglang, observability/metrics_collector.py).
    """
    pairs: dict[str, str] = dict(_PAIR.findall(labels))
    return pairs.get("priority", "") == "" and pairs.get("pp_rank", "0") == "0"


def _number(name: str, value: str) -> float:
    """A finite number >= 0, or NaN."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    # float() takes 1_000 and Prometheus does not.
    if number < 0 or "_" in value or not (math.isnan(number) or finite(number) is not None):
        raise _Garbage(f"the line of {name} is malformed")
    return number


def _total(name: str, values: list[float]) -> int | None:
    """The sum of what is known, a 64-bit count; None if nothing is."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    total = finite(sum(known))  # finite numbers may have a sum that is not
    whole = None if total is None else count(round(total))
    if whole is None:
        raise _Garbage(f"{name} is above {MAX_COUNT}")
    return whole
