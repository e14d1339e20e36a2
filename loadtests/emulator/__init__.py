"""Emulated replicas: vLLM's HTTP API over a model of its engine, with faults that can be switched on.

async with Emulator(profile="test", replicas=2) as emulator:
    emulator.urls                                   # ["http://127.0.0.1:40001", ...]
    emulator.replicas[0].fault("slow", factor=8)    # until .fault(None)
    emulator.replicas[0].running, emulator.replicas[0].requests
"""

from __future__ import annotations

from loadtests.emulator.emulator import Emulator
from loadtests.emulator.exchange import Received
from loadtests.emulator.faults import Fault, FaultKind
from loadtests.emulator.replica import EmulatedReplica

__all__ = ["EmulatedReplica", "Emulator", "Fault", "FaultKind", "Received"]
