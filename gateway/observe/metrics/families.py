"""The counters of `Metrics` as Prometheus families. docs/reference/metrics.md explains each family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from gateway.core.estimators.histograms import LogHistogram
from gateway.observe.metrics.arms import ArmFacts
from gateway.observe.metrics.facts import ADMISSIONS, REFUSAL_EDGES, Attainment, LatencyCell, TierFacts
from gateway.observe.metrics.metrics import Metrics, early_outcome
from gateway.observe.metrics.stages import STAGES

Row = tuple[tuple[str, ...], float]

LATENCIES: tuple[tuple[str, str, Callable[[LatencyCell], LogHistogram]], ...] = (
    (
        "tailgate_ttft_seconds",
        "Time to first token of streamed requests, from the complete request body.",
        lambda cell: cell.ttft,
    ),
    (
        "tailgate_tpot_seconds",
        "Mean time per output token after the first, of streamed requests.",
        lambda cell: cell.tpot,
    ),
    (
        "tailgate_e2e_seconds",
        "Time from the complete request body to the end of the answer, of finished requests.",
        lambda cell: cell.e2e,
    ),
    (
        "tailgate_queue_seconds",
        "Time from the complete request body to the dispatch that reached a replica, or to the end if none did.",
        lambda cell: cell.queue,
    ),
)


class RequestFamilies:
    """A prometheus-client collector over `Metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """All families, with their present values."""
        metrics = self._metrics
        yield from _latencies(metrics)
        yield counter(
            "tailgate_requests",
            "Requests that are over, by how they ended; tier and pool are empty where none was reached.",
            ("tier", "pool", "model", "outcome", "reason"),
            _requests(metrics),
        )
        yield counter(
            "tailgate_adapter_requests",
            "Requests for LoRA adapters that are over, by base model, adapter and how they ended.",
            ("model", "adapter", "outcome"),
            (((*names, outcome.value), n) for (*names, outcome), n in metrics.adapters.items()),
        )
        yield counter(
            "tailgate_fallbacks",
            "Requests that their tier's fallback served, since their own model would have been late.",
            ("tier", "model", "fallback", "outcome"),
            (((*names, outcome.value), n) for (*names, outcome), n in metrics.fallbacks.items()),
        )
        yield histogram(
            "tailgate_refusal_seconds",
            "Time from the complete request body to a refusal: told at once, after a wait, or caused by a failure.",
            ("tier", "family"),
            (
                ((tier, family.value), told.histogram)
                for tier, facts in metrics.tiers.items()
                for family, told in facts.refusals.items()
            ),
            REFUSAL_EDGES,
        )
        yield from _goodput(metrics)
        yield from _objectives(metrics)
        yield from _arms(metrics)
        yield counter(
            "tailgate_admission_forecasts",
            "Requests admitted on a forecast, by decision and outcome.",
            ("tier", "decision", "outcome"),
            (
                ((tier, decision.value, "good" if good else "missed"), n)
                for tier, facts in metrics.tiers.items()
                for (decision, good), (n,) in facts.forecasts.items()
            ),
        )
        yield counter(
            "tailgate_waits",
            "Requests that waited in the queue and are over, by how the wait ended: sent, or the reason of a refusal.",
            ("tier", "end"),
            (
                ((tier, "sent" if end is None else end.value), n)
                for tier, facts in metrics.tiers.items()
                for end, n in facts.waits.items()
            ),
        )
        yield counter(
            "tailgate_admissions",
            "Offered requests, by whether the client marked them as a retry, and whether they were sent to a replica.",
            ("tier", "comeback", "decision"),
            (
                ((tier, *labels), n)
                for tier, facts in metrics.tiers.items()
                for labels, n in zip(ADMISSIONS, facts.admissions, strict=True)
            ),
        )
        yield from _lanes(metrics)
        yield counter(
            "tailgate_upstream_errors",
            "Failed attempts at a replica, by kind of failure.",
            ("pool", "replica", "kind"),
            (((pool, replica, end.value), n) for (pool, replica, end), n in metrics.upstream_errors.items()),
        )
        yield counter(
            "tailgate_upstream_oddities",
            "Answers that were complete in HTTP but odd in content, by kind; none counts against a replica.",
            ("pool", "replica", "kind"),
            (((pool, replica, kind.value), n) for (pool, replica, kind), n in metrics.oddities.items()),
        )
        yield counter(
            "tailgate_mirrored",
            "Copies of requests to shadow pools that were due, by result.",
            ("model", "pool", "result"),
            (((model, pool, result.value), n) for (model, pool, result), n in metrics.mirrored.items()),
        )
        yield counter(
            "tailgate_token_counts",
            "Answers of count_tokens, by where the count came from.",
            ("source",),
            (((source.value,), n) for source, n in metrics.token_counts.items()),
        )
        yield counter(
            "tailgate_bugs",
            "Exceptions raised by callbacks of the gateway; each ended at most the request in hand.",
            ("callback",),
            (((callback.value,), n) for callback, n in metrics.bugs.items()),
        )


def _latencies(metrics: Metrics) -> Iterator[Metric]:
    cells = list(metrics.cells.items())
    for name, about, read in LATENCIES:
        yield histogram(name, about, ("tier", "pool", "replica"), ((key, read(cell)) for key, cell in cells))
    yield histogram(
        "tailgate_itl_seconds",
        "Inter-token latency: time between two chunks of a streamed answer.",
        ("tier", "pool"),
        ((key, quantiles.histogram) for key, quantiles in metrics.itl.items()),
        metrics.edges.itl,
    )


def _requests(metrics: Metrics) -> Iterator[Row]:
    for (tier, pool), lane in metrics.lanes.items():
        for (model, outcome, why), (n,) in lane.requests.items():
            yield (tier, pool, model, outcome.value, why.value if why else ""), n
    for why, n in metrics.early.items():
        yield ("", "", "", early_outcome(why).value, why.value), n


def _goodput(metrics: Metrics) -> Iterator[Metric]:
    for name, text, index in (
        ("tailgate_good_requests", "Requests finished within every bound of their tier's SLO.", TierFacts.GOOD),
        ("tailgate_finished_requests", "Requests that were answered to their end.", TierFacts.FINISHED),
        (
            "tailgate_offered_requests",
            "The denominator of goodput: finished, refused for want of capacity, timed out or failed.",
            TierFacts.OFFERED,
        ),
    ):
        rows = (((tier,), facts.counts[index]) for tier, facts in metrics.tiers.items())
        yield counter(name, text, ("tier",), rows)
    yield counter(
        "tailgate_stage_seconds",
        "Time of streamed requests with a first token, by the stage in which it was spent.",
        ("tier", "stage"),
        (
            ((tier, stage), seconds)
            for tier, facts in metrics.tiers.items()
            for stage, seconds in zip(STAGES, facts.stages, strict=True)
        ),
        "seconds",
    )
    yield gauge(
        "tailgate_tier_weight",
        "What one good request of the tier is worth.",
        ("tier",),
        (((tier.name,), tier.weight) for tier in metrics.policy.tiers.values()),
    )


def _arms(metrics: Metrics) -> Iterator[Metric]:
    arms, labels = list(metrics.arms.facts.items()), ("model", "arm")
    yield counter(
        "tailgate_arm_requests",
        "Requests of split models that are over, by the arm that they went to and how they ended.",
        (*labels, "outcome"),
        (((*key, outcome.value), n) for key, facts in arms for outcome, n in facts.outcomes.items()),
    )
    for name, text, index in (
        ("tailgate_arm_good_requests", "Requests of an arm within every bound of their tier's SLO.", ArmFacts.GOOD),
        ("tailgate_arm_offered_requests", "The denominator of an arm's goodput.", ArmFacts.OFFERED),
    ):
        yield counter(name, text, labels, ((key, facts.counts[index]) for key, facts in arms))
    yield histogram(
        "tailgate_arm_ttft_seconds",
        "Time to first token of streamed requests of an arm, from the complete request body.",
        labels,
        ((key, facts.ttft.histogram) for key, facts in arms),
        metrics.edges.ttft,
    )
    yield histogram(
        "tailgate_arm_e2e_seconds",
        "Time to the end of the answer, of requests of an arm that finished.",
        labels,
        ((key, facts.e2e.histogram) for key, facts in arms),
        metrics.edges.e2e,
    )


def _objectives(metrics: Metrics) -> Iterator[Metric]:
    labels = ("tier", "metric", "percentile")
    attained = [
        ((tier, metric.value, name), attainment)
        for tier, facts in metrics.tiers.items()
        for (metric, name), attainment in facts.slo.items()
    ]
    yield counter(
        "tailgate_slo_good",
        "Requests that met the threshold of an objective.",
        labels,
        ((key, attainment.counts[Attainment.GOOD]) for key, attainment in attained),
    )
    yield counter(
        "tailgate_slo",
        "Requests that an objective applied to, refusals, timeouts and errors included.",
        labels,
        ((key, attainment.counts[Attainment.TOTAL]) for key, attainment in attained),
    )
    objectives = [
        ((tier.name, metric.value, objective.percentile), objective)
        for tier in metrics.policy.tiers.values()
        for metric, objective in tier.slo.objectives()
    ]
    yield gauge(
        "tailgate_slo_objective_ratio",
        "Share of requests that shall meet the threshold, in the current policy.",
        labels,
        ((key, objective.quantile) for key, objective in objectives),
        "ratio",
    )
    yield gauge(
        "tailgate_slo_threshold_seconds",
        "Threshold of the objective, in the current policy.",
        labels,
        ((key, objective.threshold_s) for key, objective in objectives),
        "seconds",
    )


def _lanes(metrics: Metrics) -> Iterator[Metric]:
    lanes = metrics.lanes
    exact = ((False, "false"), (True, "true"))
    labels = ("tier", "pool", "exact")
    yield counter(
        "tailgate_prompt_tokens",
        "Prompt tokens of requests that are over; exact where the engine counted them.",
        labels,
        (((*key, label), lane.prompt_tokens[flag]) for key, lane in lanes.items() for flag, label in exact),
    )
    yield counter(
        "tailgate_output_tokens",
        "Output tokens of requests that are over; exact where the engine counted them.",
        labels,
        (((*key, label), lane.output_tokens[flag]) for key, lane in lanes.items() for flag, label in exact),
    )
    yield counter(
        "tailgate_attempts",
        "Attempts made at replicas; more than one per request are retries and hedges.",
        ("tier", "pool"),
        ((key, lane.attempts) for key, lane in lanes.items()),
    )


def gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[Row], unit: str = "") -> Metric:
    """A gauge family."""
    family = GaugeMetricFamily(name, text, labels=labels, unit=unit)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def counter(name: str, text: str, labels: Sequence[str], rows: Iterable[Row], unit: str = "") -> Metric:
    family = CounterMetricFamily(name, text, labels=labels, unit=unit)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def histogram(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[tuple[str, ...], LogHistogram]],
    edges: Sequence[float] | None = None,
) -> Metric:
    """A histogram family. `edges`: the edges to export, a subset of the histograms' own edges."""
    family = HistogramMetricFamily(name, text, labels=labels, unit="seconds")
    for values, counted in rows:
        below = dict(zip(counted.edges, accumulate(counted.counts), strict=False))
        buckets = [(str(edge), below[edge]) for edge in edges or counted.edges]
        family.add_metric(values, [*buckets, ("+Inf", sum(counted.counts))], counted.sum)
    return family
