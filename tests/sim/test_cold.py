"""The first seconds of a gateway that knows nothing, on an engine with far more seats than learned slots begin with."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.rules import Admission, AdmissionMode, Objective, Policy, Slo
from gateway.policy.builtin import builtin
from gateway.sim.engine import Options
from gateway.sim.fleet import FleetSpec
from gateway.sim.lengths import LENGTHS
from gateway.sim.profiles import Profile
from gateway.sim.run import simulate
from gateway.sim.synthetic import Share, Synthetic

# Llama 2 70B on eight H100. Step costs are medians of kernel times that the authors of Vidur measured (Agrawal et al.,
# MLSys 2024; microsoft/vidur, MIT licence, data/profiling/compute). The cost of a context token is its bytes over 80%
# of 8 x 3.35 TB/s; the cache is .9 of the memory less the weights.
LLAMA_70B_H100 = Profile(
    name="llama2-70b-h100-tp8",
    max_model_len=4096,
    max_num_seqs=1024,
    max_batched_tokens=8192,
    kv_capacity_tokens=1_300_000,
    step_base_s=8.6e-3,
    prefill_s_per_token=28.6e-6,
    decode_s_per_sequence=16e-6,
    kv_s_per_token=15e-9,
)
KNEE_PER_S = 59.0
"""Highest rate at which two of them, by round robin, are in time with 97% of Azure's conversations of 2023."""
SECONDS = 20.0


def enforced() -> Policy:
    """Two replicas whose slots are learned, and one tier that is held to its objectives."""
    rules = builtin(["http://127.0.0.1:9001", "http://127.0.0.1:9002"])
    slo = Slo(ttft=(Objective(0.99, 2.0),), tpot=(Objective(0.99, 0.15),))
    tier = replace(rules.tiers["default"], slo=slo, admission=Admission(AdmissionMode.ENFORCE))
    return replace(rules, tiers={"default": tier})


def test_a_cold_gateway_that_enforces_serves_nearly_all_of_what_its_engines_can() -> None:
    share = Share(
        "default", 1.0, LENGTHS["azure-conversation-prompt"], LENGTHS["azure-conversation-answer"], model="any"
    )
    arrivals = Synthetic(KNEE_PER_S, SECONDS, (share,)).arrivals(1)
    cold = simulate(
        enforced(), arrivals, fleet=FleetSpec({"default": LLAMA_70B_H100}), options=Options(duration_s=SECONDS)
    )
    assert cold.goodput > 0.9
