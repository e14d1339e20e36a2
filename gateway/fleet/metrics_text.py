"""Reads load signals from an engine's Prometheus page.

This runs once a second per replica, in the process that serves requests. So it finds the few lines that it needs with
`str.find`, and does not parse the page (50 kB of histograms on vLLM 0.32). Several series of one metric are combined as
follows:

    waiting, running,
    preemptions,
    generated tokens,
    cached tokens       the sum over the engines (data-parallel ranks) behind one address
    times of requests   the sum over the engines, and over all requests since they started
    KV use              the largest: requests are preempted in the engine that is fullest

If ranks are replicas of their own, only series of the same rank are combined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.pool_spec import EngineKind
from gateway.core.sample import Sample
from gateway.fleet.engine_times import EngineTotals
from gateway.fleet.fault import Failed, ReadFault
from gateway.wire.numbers import MAX_COUNT, count, finite


@dataclass(frozen=True, slots=True)
class _Names:
    """Metric names of one engine. `kv` has several names: the first that the page has counts."""

    waiting: str
    running: str
    kv: tuple[str, ...] = ()
    preemptions: str | None = None
    cache_queries: str | None = None
    """Prompt tokens that were looked up in the prefix cache."""
    cache_hits: str | None = None
    """Prompt tokens that were found in the prefix cache."""
    generated: str | None = None
    """Tokens generated, counted at each step. A count that moves only when a request ends says nothing in between."""
    adapters: str | None = None
    """LoRA adapters with requests. The engine writes them into labels. The latest of several series counts."""
    queue_s: str | None = None
    """Histogram of the seconds that requests wait in the engine's queue."""
    prefill_s: str | None = None
    """Histogram of the seconds from there to the first token."""

    def __iter__(self) -> Iterator[str]:
        """All metric names."""
        optional = (self.preemptions, self.cache_queries, self.cache_hits, self.generated, self.adapters)
        histograms = (f"{name}{part}" for name in (self.queue_s, self.prefill_s) if name for part in _PARTS)
        return iter((self.waiting, self.running, *self.kv, *(name for name in optional if name), *histograms))


_PARTS: Final = ("_sum", "_count")
"""Series of a histogram that are read."""


_NAMES: dict[EngineKind, _Names] = {
    # gpu_cache_usage_perc was the name before kv_cache_usage_perc; some versions export both.
    EngineKind.VLLM: _Names(
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:generation_tokens_total",
        "vllm:lora_requests_info",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
    ),
    # SGLang's cache_hit_rate is not used, because it is only the rate of the last batch. Its generation_tokens_total
    # moves only when a request ends.
    EngineKind.SGLANG: _Names(
        "sglang:num_queue_reqs",
        "sglang:num_running_reqs",
        ("sglang:token_usage",),
        cache_queries="sglang:prompt_tokens_total",
        cache_hits="sglang:cached_tokens_total",
        queue_s="sglang:queue_time_seconds",
        prefill_s="sglang:per_stage_req_latency_seconds",
    ),
    EngineKind.TGI: _Names("tgi_queue_size", "tgi_batch_current_size"),
}

# Text after a metric's name: labels (quoted values escape \, " and newline), a value, a timestamp. All quantifiers are
# possessive, so that no page can cause backtracking.
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
_RANK = re.compile(r'[{,][ \t]*engine="(\d{1,5})"')
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:")

# A full cache may read slightly above 1, because floats are rounded. A larger value is not a fraction.
_FULL = 1.001
# Series of one metric: an engine has a few for each data-parallel rank. A page with too many series would delay tokens.
_MAX_SERIES = 1000


def scrapes(engine: EngineKind) -> bool:
    """Whether this engine has a readable page of metrics."""
    return engine in _NAMES


@dataclass(frozen=True, slots=True)
class Scraped:
    """One page, or the part of one rank. `times`: None if the engine has no such histograms."""

    sample: Sample
    times: EngineTotals | None = None


def read_page(engine: EngineKind, body: bytes, *, by_rank: bool = False) -> tuple[Scraped, ...] | Failed:
    """The load that a page of `engine` reports: one element, or one for each rank in the order of ranks.

    A value that is absent or NaN is None.

    Failed(GARBAGE) names the metric whose line is malformed, infinite, negative or out of range. Out of range means a
    KV use above 1, a sum beyond 64 bits, or more than 1000 series. Failed(EMPTY) is a page without any of the wanted
    metrics. An engine without metrics gives an empty `Sample`.
    """
    names = _NAMES.get(engine)
    if names is None:
        return (Scraped(Sample()),)
    try:
        text = body.decode()
        page = {name: _lines(engine, text, name) for name in names}
        if not any(page[name] for name in (names.waiting, names.running, *names.kv)):
            return Failed(ReadFault.EMPTY, f"no metric of {engine} on the page, such as {names.running}")
        limit, active = (None, None) if names.adapters is None else _adapters(page[names.adapters])
        if not by_rank:
            return (Scraped(_sample(names, page, limit, active), _times(names, page)),)
        # With vLLM's hybrid load balancer, a node numbers its ranks in labels from --data-parallel-start-rank on, but
        # in the request header from 0. Adapters have no rank label. Their limit applies to each rank. It is unknown
        # which rank has an adapter loaded.
        ranks = _by_rank(names, page)
        if not ranks:
            return Failed(ReadFault.EMPTY, f"no series of {names.running} has the label engine: the ranks are unknown")
        return tuple(Scraped(_sample(names, own, limit, None), _times(names, own)) for own in ranks)
    except UnicodeDecodeError:
        return Failed(ReadFault.GARBAGE, "the page is not UTF-8")
    except _Garbage as garbage:
        return Failed(ReadFault.GARBAGE, str(garbage))


class _Garbage(Exception):
    """A metric cannot be read. The message names the metric and says why. Raised and caught in this file only."""


Lines = list[tuple[str, float]]
"""(labels, value) of each series of one metric that counts."""


def _sample(
    names: _Names, page: Mapping[str, Lines], max_adapters: int | None, active_adapters: tuple[str, ...] | None
) -> Sample:
    kv = next((lines for name in names.kv if (lines := page[name])), [])
    kv_fraction = max((value for _, value in kv if not math.isnan(value)), default=None)
    if kv_fraction is not None and kv_fraction > _FULL:
        raise _Garbage(f"{names.kv[0]} is above 1")
    return Sample(
        max_adapters=max_adapters,
        active_adapters=active_adapters,
        waiting=_total(page, names.waiting),
        running=_total(page, names.running),
        kv_fraction=None if kv_fraction is None else min(kv_fraction, 1.0),
        preemptions=_total(page, names.preemptions),
        cache_queries=_total(page, names.cache_queries),
        cache_hits=_total(page, names.cache_hits),
        generated_tokens=_total(page, names.generated),
    )


def _times(names: _Names, page: Mapping[str, Lines]) -> EngineTotals | None:
    """The times of requests, if the engine tells them. SGLang tells those of all its stages in one histogram."""
    if names.queue_s is None or names.prefill_s is None:
        return None
    lines = [page[f"{name}{part}"] for name in (names.queue_s, names.prefill_s) for part in _PARTS]
    of_stages = [[value for labels, value in each if _is_first_token(labels)] for each in lines]
    if not all(of_stages):
        return None
    queue_s, queued, prefill_s, prefilled = map(sum, of_stages)
    return EngineTotals(queue_s, queued, prefill_s, prefilled)


def _is_first_token(labels: str) -> bool:
    """Whether a series is about the time before the first token: it has no stage, or that of the prompt."""
    return "stage=" not in labels or 'stage="prefill_forward"' in labels


def _by_rank(names: _Names, page: Mapping[str, Lines]) -> list[dict[str, Lines]]:
    """The series of each rank by metric, in order. The ranks are those in the metric of running requests."""
    ranks: dict[int, dict[str, Lines]] = {}
    for name, lines in page.items():
        for line in lines:
            found = _RANK.search(line[0])
            if found is not None:
                own = ranks.setdefault(int(found[1]), {name: [] for name in page})
                own[name].append(line)
    return [ranks[rank] for rank in sorted(ranks) if ranks[rank][names.running]]


def _adapters(lines: Lines) -> tuple[int | None, tuple[str, ...] | None]:
    """(limit on adapters in one batch, adapters with requests).

    vLLM writes the adapters into labels, with a timestamp as the value. Series of earlier steps stay on the page.
    """
    latest, labels = -1.0, ""
    for written, value in lines:
        if value > latest:
            latest, labels = value, written
    if latest < 0:
        return None, None
    pairs: dict[str, str] = dict(_PAIR.findall(labels))
    limit = pairs.get("max_lora", "")
    listed = f"{pairs.get('running_lora_adapters', '')},{pairs.get('waiting_lora_adapters', '')}".split(",")
    active = dict.fromkeys(adapter.strip() for adapter in listed if adapter.strip())
    return int(limit) if limit.isdecimal() and 0 < len(limit) < 10 and int(limit) else None, tuple(active)


def _lines(engine: EngineKind, text: str, name: str) -> Lines:
    """Every series of `name` that counts; [] if the page does not have this metric."""
    values: Lines = []
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        # The name must be whole and at the start of a line: not in a comment, a label value or a longer name.
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
    """Whether a series counts. SGLang reports some requests in several series, of which only one counts.

    With priority scheduling, the total has `priority=""`, and further series have its parts by priority. With pipeline
    parallelism, every stage reports the same requests (sglang, observability/metrics_collector.py).
    """
    pairs: dict[str, str] = dict(_PAIR.findall(labels))
    return pairs.get("priority", "") == "" and pairs.get("pp_rank", "0") == "0"


def _number(name: str, value: str) -> float:
    """A finite number >= 0, or NaN."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    # `float()` accepts 1_000, but Prometheus does not.
    if number < 0 or "_" in value or not (math.isnan(number) or finite(number) is not None):
        raise _Garbage(f"the line of {name} is malformed")
    return number


def _total(page: Mapping[str, Lines], name: str | None) -> int | None:
    """The sum of the known values, a 64-bit count; None if none is known."""
    known = [] if name is None else [value for _, value in page[name] if not math.isnan(value)]
    if not known:
        return None
    total = finite(sum(known))  # the sum of finite numbers may be infinite
    whole = None if total is None else count(round(total))
    if whole is None:
        raise _Garbage(f"{name} is above {MAX_COUNT}")
    return whole
