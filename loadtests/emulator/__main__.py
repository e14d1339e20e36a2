"""`tailgate load emulate`: emulated vLLM replicas on consecutive ports."""

from __future__ import annotations

import argparse
import asyncio
import errno
import math
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

import uvloop

from gateway.observe.metrics.lag import LoopLag
from gateway.sim.engine.profiles import PROFILES, profile_of
from loadtests.emulator.emulator import MODEL, Emulator
from loadtests.ports import MAX, port_number

EPILOG = """\
profiles: {profiles}

faults, switched while it runs:
  curl localhost:PORT/emulator/faults -d '{{"fault": "slow", "factor": 8}}'
  # the third replica, through the port of any
  curl localhost:PORT/emulator/faults -d '{{"fault": "dead", "replica": 2}}'
  curl localhost:PORT/emulator/faults -d '{{"fault": "reset", "after_events": 5, "count": 1}}'
  curl localhost:PORT/emulator/faults -d '{{"fault": null}}'
requests that it got: GET /emulator/requests (heads and bodies), GET /emulator/state (counters)
"""


def scale(text: str) -> float:
    """Parse a number above 0, or "max"."""
    if text == "max":
        return math.inf
    value = _float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0, such as 0.5, or max")
    return value


def whole(least: int) -> Callable[[str], int]:
    """A parser of whole numbers from `least` on."""

    def read(text: str) -> int:
        value = int(text) if re.fullmatch(r"-?\d+", text, re.ASCII) else least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text}: give a whole number, at least {least}")
        return value

    return read


def number(least: float, most: float = 1e9) -> Callable[[str], float]:
    """A parser of numbers from `least` to `most`."""

    def read(text: str) -> float:
        value = _float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: give a number from {least:g} to {most:g}")
        return value

    return read


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="tailgate load emulate",
        description="Emulated vLLM replicas: a continuous-batching engine model behind vLLM's HTTP API.",
        epilog=EPILOG.format(profiles=", ".join(PROFILES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=port_number, required=True, help="port of the first replica, others follow; 0: any free ones")
    add("--replicas", type=whole(1), default=1, metavar="N", help="how many (%(default)s)")
    add("--dp", type=whole(1), default=1, metavar="N", help="data-parallel ranks of each (%(default)s)")
    add(
        "--profile",
        default="default",
        metavar="NAME|FILE.json",
        help="engine to emulate: a profile by name, or a file of tailgate load calibrate (%(default)s)",
    )
    add("--time-scale", type=scale, default=1.0, metavar="X", help="virtual seconds per real second, or max (1)")
    add("--model", default=MODEL, help="name of the model (%(default)s)")
    add("--seed", type=int, default=0, help="seed of answers and their lengths (%(default)s)")
    add(
        "--output-median",
        type=number(1.0),
        default=128.0,
        metavar="TOKENS",
        help="median length of an answer (%(default)s)",
    )
    add(
        "--output-sigma",
        type=number(0.0, 10.0),
        default=0.7,
        metavar="S",
        help="sigma of that lognormal; 0: all have the median (%(default)s)",
    )
    add(
        "--max-num-queued-reqs",
        type=whole(0),
        default=None,
        metavar="N",
        help="refuse with 503 beyond N waiting (no limit)",
    )
    add(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep a prefix cache",
    )
    add(
        "--enable-prompt-tokens-details",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="report cached prompt tokens in answers, which vLLM does not do by default",
    )
    add(
        "--keep-alive",
        type=number(0.0),
        default=5.0,
        metavar="S",
        help="close connections idle for S seconds (%(default)s)",
    )
    add(
        "--keep-requests",
        type=whole(0),
        default=256,
        metavar="N",
        help="requests kept for /emulator/requests (%(default)s)",
    )
    return parser


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    emulator = Emulator(
        profile=options.profile,
        replicas=options.replicas,
        host=options.host,
        port=options.port,
        time_scale=options.time_scale,
        model=options.model,
        seed=options.seed,
        output_median_tokens=options.output_median,
        output_sigma=options.output_sigma,
        keep_alive_s=options.keep_alive,
        keep_requests=options.keep_requests,
        max_queued=options.max_num_queued_reqs,
        prompt_tokens_details=options.enable_prompt_tokens_details,
        dp=options.dp,
    )
    lag = LoopLag(monotonic, lambda _: None)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with emulator:
        profile = emulator.profile
        what = (
            f"model {options.model}, profile {profile.name}: context {profile.max_model_len}, "
            f"{profile.max_num_seqs} slots, KV cache {profile.kv_capacity_tokens} tokens, time x{options.time_scale:g}"
        )
        for replica in emulator.replicas:
            print(f"{replica.url}  {what}", flush=True)
            replica.loop_waits = lag.waits
        measuring = asyncio.create_task(lag.run())
        await stop.wait()
        measuring.cancel()


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, by default that of the process, and serve."""
    command = parser()
    options = command.parse_args(arguments)
    if options.port + options.replicas - 1 > MAX:
        command.error(f"argument --port: {options.port} leaves too few ports for {options.replicas} replicas")
    try:
        # `path_s` is left out: here HTTP takes real time.
        profile = profile_of(options.profile)
        options.profile = replace(profile, prefix_caching=profile.prefix_caching and options.enable_prefix_caching)
    except ValueError as error:
        command.error(f"argument --profile: {error}")
    try:
        uvloop.run(serve(options))
    except OSError as error:
        hint = ": --port, 0 takes free ones" if error.errno == errno.EADDRINUSE else ""
        command.exit(1, f"cannot listen: {error.strerror or error}{hint}\n")


if __name__ == "__main__":
    main()
