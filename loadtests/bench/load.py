"""The load: one process that plays many clients, with an order on stdin and the results on stdout.

`echo '{"kind": "closed", "port": 8080, "watch": 4711}' | python -m loadtests.bench.load`. The kinds are the dataclasses
`Closed`, `Outside`, `Open`, `Streams`, `Hold`, `Decisions` and `Fleet`; an order has the fields of its kind. Faults are
listed in `errors`, and a run with errors is void.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import uvloop

from loadtests.bench.answer import BadAnswer
from loadtests.bench.closedloop import Closed, ClosedResult, first_answer, run_closed
from loadtests.bench.decisions import Decisions, DecisionsResult, run_decisions
from loadtests.bench.fleet import Fleet, FleetResult, prepare, run_fleet
from loadtests.bench.openloop import Open, OpenResult, run_open
from loadtests.bench.outside import Outside, OutsideResult, run_outside
from loadtests.bench.streams import Hold, HoldResult, Streams, StreamsResult, run_hold, run_streams

Spec = Closed | Outside | Open | Streams | Hold | Decisions | Fleet
Result = ClosedResult | OutsideResult | OpenResult | StreamsResult | HoldResult | DecisionsResult | FleetResult
KINDS: dict[str, type[Spec]] = {
    "closed": Closed,
    "outside": Outside,
    "open": Open,
    "streams": Streams,
    "hold": Hold,
    "decisions": Decisions,
    "fleet": Fleet,
}


def run(spec: Spec) -> Result:
    """Run one load to its end. Raises BadAnswer or OSError if the first contact fails."""
    if isinstance(spec, Decisions):
        return run_decisions(spec)
    if isinstance(spec, Fleet):
        prepare(spec)
        return uvloop.run(run_fleet(spec))
    # Before any measurement: answers are checked, the proxy's pools are filled, and its first, slow requests are over.
    length = first_answer(spec.port)
    match spec:
        case Closed():
            return uvloop.run(run_closed(spec, length))
        case Outside():
            return run_outside(spec)
        case Open():
            return run_open(spec, length)
        case Streams():
            return uvloop.run(run_streams(spec))
        case Hold():
            return uvloop.run(run_hold(spec))


def main() -> None:
    """Read one order from stdin and print the result."""
    order = json.loads(sys.stdin.read())
    try:
        result: object = asdict(run(KINDS[order.pop("kind")](**order)))
    except (BadAnswer, OSError) as error:
        result = {"errors": [f"first contact: {error}"]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
