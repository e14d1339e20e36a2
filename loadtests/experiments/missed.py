"""Why each experiment misses targets, for its page: the worst cell first, then the reason."""

from __future__ import annotations

WHY = {
    "engines": """\
Zero-config refuses nobody. At 1.5x before unlike replicas, round robin overloads only the slow replica, so half of the
answers stay good. A router that shares by speed makes all answers late. A cold 70B loses .04 of goodput, two seats at
2x .13.""",
    "real-traces": """\
In most cells at 1.5x a peer has more than .95 good, so the wanted 1.05 times as much is impossible.""",
    "noise": "The best static cap loses less in the worst cell, but has less goodput with and without noise.",
    "one-tier": """\
Short prompts are favoured less than at the start: .007 fewer of the requests are good, and .005 more of the
tokens.""",
    "backlog": """\
A lone interactive request takes 70 of its 100 ms. Beside a batch, one that finds no free place waits some 50 ms for
the next end, and would be late.""",
    "batch": """\
On the 8B with tight bounds, interactive requests are lost for seconds where their load comes back.""",
    "step-response": "The reason is not known.",
    "autoscale": "Within chance of the target.",
    "affinity": """\
Gateways that share conversations request by request, without keys, see a part of each. With session keys, or
`first-message`, they find .97 of the cached tokens. Goodput and TTFT of `conversations` gain little, since answers
are most of the work.""",
    "live-overload": "Candidates ran two or three at a time, and other work ran on the machine.",
    "simulated-live": """\
By chance, one such miss is expected in most runs (`missed_by_chance`). `--full` plays up to
twenty, and then all are met.""",
    "routing-staleness": """\
In conversations (main), the 64 sequences of an engine run out at about .93 of saturation. Above that, each
request waits until a sequence ends at any engine. The fleet is then one queue, and no router gains much: `one
queue` shows how little.""",
    "gateways": """\
Within 25 ms, two of four gateways may choose the same free seat. Before engines of 4 seats, the later request then
waits for a whole answer.""",
    "known-knee": """\
At a few requests a second, half an hour has too few. One engine changes between good and bad phases of minutes.""",
    "simulator-speed": "The machine was 1.35 times slower than on the day before.",
}
"""Markdown by name of the experiment. An experiment that meets all its targets has no row."""
