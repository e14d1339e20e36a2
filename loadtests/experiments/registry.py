"""Every experiment by name."""

from __future__ import annotations

from collections.abc import Callable

from loadtests.experiments.affinity import affinity
from loadtests.experiments.autoscale import autoscale
from loadtests.experiments.backlog import backlog
from loadtests.experiments.batch import batch
from loadtests.experiments.calibration import calibration
from loadtests.experiments.cancel_churn import cancel_churn
from loadtests.experiments.censoring import censoring
from loadtests.experiments.coordinated_omission import coordinated_omission
from loadtests.experiments.engines import engines
from loadtests.experiments.fan_out import fan_out
from loadtests.experiments.fault_drill import fault_drill
from loadtests.experiments.findings import Findings
from loadtests.experiments.generator import generator
from loadtests.experiments.hedge_utilisation import hedge_utilisation
from loadtests.experiments.hold_depth import hold_depth
from loadtests.experiments.known_knee import known_knee
from loadtests.experiments.live_overload import live_overload
from loadtests.experiments.long_prompts import long_prompts
from loadtests.experiments.noise import noise
from loadtests.experiments.one_tier import one_tier
from loadtests.experiments.outside_tools import outside_tools
from loadtests.experiments.overload import overload
from loadtests.experiments.promises import promises
from loadtests.experiments.real_traces import real_traces
from loadtests.experiments.report_speed import report_speed
from loadtests.experiments.retry_storm import retry_storm
from loadtests.experiments.routing_staleness import routing_staleness
from loadtests.experiments.runner import Runner
from loadtests.experiments.several_gateways import several_gateways
from loadtests.experiments.simulated_live import simulated_live
from loadtests.experiments.simulator_speed import simulator_speed
from loadtests.experiments.slo_knees import slo_knees
from loadtests.experiments.split import split
from loadtests.experiments.step_response import step_response
from loadtests.experiments.store_faults import store_faults
from loadtests.experiments.stragglers_live import stragglers_live
from loadtests.experiments.textbook_hedge import textbook_hedge
from loadtests.experiments.tiers import tiers
from loadtests.experiments.ttft_collapse import ttft_collapse
from loadtests.experiments.value import value

EXPERIMENTS: dict[str, Callable[[Runner], Findings]] = {
    "overload": overload,
    "engines": engines,
    "promises": promises,
    "noise": noise,
    "value": value,
    "one-tier": one_tier,
    "tiers": tiers,
    "batch": batch,
    "backlog": backlog,
    "real-traces": real_traces,
    "calibration": calibration,
    "hold-depth": hold_depth,
    "routing-staleness": routing_staleness,
    "affinity": affinity,
    "split": split,
    "gateways": several_gateways,
    "store-faults": store_faults,
    "autoscale": autoscale,
    "step-response": step_response,
    "ttft-collapse": ttft_collapse,
    "slo-knees": slo_knees,
    "live-overload": live_overload,
    "textbook-hedge": textbook_hedge,
    "hedge-utilisation": hedge_utilisation,
    "censoring": censoring,
    "fault-drill": fault_drill,
    "stragglers-live": stragglers_live,
    "retry-storm": retry_storm,
    "fan-out": fan_out,
    "cancel-churn": cancel_churn,
    "long-prompts": long_prompts,
    "simulated-live": simulated_live,
    "simulator-speed": simulator_speed,
    "coordinated-omission": coordinated_omission,
    "generator": generator,
    "report-speed": report_speed,
    "outside-tools": outside_tools,
    "known-knee": known_knee,
}

WITH_SET_ASIDE = ("engines", "promises", "noise", "batch", "real-traces")
"""Experiments on several engines, which have cells that were set aside."""


def about(name: str) -> str:
    """The docstring of an experiment's module."""
    module = __import__(EXPERIMENTS[name].__module__, fromlist=["__doc__"])
    return (module.__doc__ or "").strip()
