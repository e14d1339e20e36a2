"""Why each experiment misses targets, for its page: the worst cell first, then the reason."""

from __future__ import annotations

WHY = {
    "engines": """\
The worst cells are four seats, three tiers on the 8B, and reasoning. In most of them the clairvoyant bound is
only 1.00 to 1.03 times the best static cap, so nobody could have 1.05. Other caps break promises that ours
keeps.""",
    "promises": """\
Where refusals are rare, a p99 that is just kept and half of the refusals late are the same thing. At a full
replica nothing ranks forecasts of TPOT, so P(breach) is off.""",
    "one-tier": """\
The replay knows the length of each answer and takes the short ones. Of a replay that expects the mean length,
ours has .99 to 1.05.""",
    "overload": """\
A cap lets the lowest tier wait through bursts, and refuses 3.5% of it late. The rest is the price of not
knowing the lengths of answers.""",
    "noise": "The best static cap loses less in the worst cell, but has less goodput with and without noise.",
    "batch": """\
On the 8B with tight bounds, interactive requests are lost for seconds where their load comes back.""",
    "calibration": "This was measured without the calibration that ADR 0025 describes.",
    "step-response": "The rate settles in 15 s. The reason is not known.",
    "affinity": """\
Gateways that share conversations request by request, without keys, see a part of each. Session keys, or
`first-message`, give .97. The goodput of `conversations` gains little, since answers are most of the work.""",
    "live-overload": "Candidates ran two or three at a time, and other work ran on the machine.",
    "simulated-live": """\
Each test is played once. By the seeds, one such miss is expected in most runs (`missed_by_chance`). `--full`
plays up to twenty, and then all are met.""",
    "routing-staleness": """\
In conversations (main), the 64 sequences of an engine run out at about .93 of saturation. Above that, each
request waits until a sequence ends at any engine. The fleet is then one queue, and no router gains much: `one
queue` shows how little.""",
    "simulator-speed": "The machine was 1.35 times slower than on the day before.",
}
"""Markdown by name of the experiment. An experiment that meets all its targets has no row."""
