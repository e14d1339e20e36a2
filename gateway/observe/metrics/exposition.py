"""The metrics page: OpenMetrics or the classic text format, written in small pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client import exposition as classic
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from gateway.observe.metrics.families import RequestFamilies
from gateway.observe.metrics.gauges import ProcessFamilies
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.sources import Sources

SAMPLES_AT_ONCE = 200
"""Number of samples that are written without a pause. The event loop writes the page, and it also forwards tokens. 200
samples block it for about 2 ms.
"""


def registry(metrics: Metrics, sources: Sources) -> CollectorRegistry:
    """A registry with the collectors of the page. prometheus-client's global registry is not used."""
    own = CollectorRegistry()
    own.register(RequestFamilies(metrics))
    own.register(ProcessFamilies(sources, metrics))
    ProcessCollector(registry=own)
    PlatformCollector(registry=own)
    GCCollector(registry=own)
    return own


async def registry_in_pieces(metrics: Metrics, sources: Sources) -> CollectorRegistry:
    """A registry to be read once, soon: its snapshot was taken in pieces."""
    snapshot = await sources.snapshot_in_pieces()
    return registry(metrics, replace(sources, snapshot=lambda: snapshot))


@dataclass(frozen=True, slots=True)
class Format:
    """A text format. `encode`: writes families. `end`: text after the last family."""

    content_type: str
    encode: Callable[[Collector], bytes]
    end: bytes


CLASSIC = Format(classic.CONTENT_TYPE_PLAIN_0_0_4, classic.generate_latest, b"")
OPENMETRICS = Format(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest, b"# EOF\n")


def chosen(accept: str) -> Format:
    """The format for an Accept header: OpenMetrics if the header names it, as Prometheus does."""
    return OPENMETRICS if "application/openmetrics-text" in accept else CLASSIC


async def render(collector: Collector, form: Format) -> AsyncIterator[bytes]:
    """Yield the page in pieces. The event loop runs other work between them. All values of a family are read at the
    same moment, or from the same snapshot in parts that follow each other.
    """
    name = ""
    for family in collector.collect():
        for piece in _pieces(family, form, has_head=family.name != name):
            yield piece
            await asyncio.sleep(0)
        name = family.name
    yield form.end


@dataclass(frozen=True, slots=True)
class _Some:
    """A collector with one family, or a part of its samples."""

    family: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.family


def _pieces(family: Metric, form: Format, *, has_head: bool) -> Iterator[bytes]:
    samples = family.samples
    for start in range(0, len(samples) or 1, SAMPLES_AT_ONCE):
        part = Metric(family.name, family.documentation, family.type, family.unit)
        part.samples = samples[start : start + SAMPLES_AT_ONCE]
        text = form.encode(_Some(part)).removesuffix(form.end)
        yield text if start == 0 and has_head else _without_head(text)


def _without_head(text: bytes) -> bytes:
    """`text` without the HELP, TYPE and UNIT lines at its beginning."""
    while text.startswith(b"# "):
        text = text.partition(b"\n")[2]
    return text
