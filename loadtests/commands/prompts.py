"""The options of a file of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gateway.core.request import Endpoint
from gateway.sim.workload.traces import EmptyRows, Mix
from loadtests.replay.traffic import Traffic
from loadtests.traces.prompt_file import RATE_PER_S, PromptFile


class History(StrEnum):
    """Which answers conversations go on with."""

    MODEL = "model"
    RECORDED = "recorded"


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """A file, and how it is read."""

    path: Path
    api: str | None
    stream: bool | None
    sample: int | None
    shuffled: bool
    think_s: float


def prompts_of(
    options: PromptOptions, mix: Mix, rate: float | None, speed: float | None, duration_s: float | None
) -> Traffic:
    """The traffic of a file of prompts. Raises ValueError."""
    if not options.path.is_file():
        raise ValueError(f"--prompts {options.path}: there is no such file")
    if options.api is not None and options.api not in set(Endpoint):
        raise ValueError(f"--api {options.api} is not a path of the API, such as {Endpoint.COMPLETIONS.value}")
    if rate is not None and speed is not None:
        raise ValueError("--rate and --speed both set the speed: keep one")
    left_out = EmptyRows()
    found = PromptFile(
        path=options.path,
        mix=mix,
        api=options.api,
        rate_per_s=rate,
        speed=speed or 1.0,
        duration_s=duration_s,
        sample=options.sample,
        shuffled=options.shuffled,
        think_s=options.think_s,
        stream=options.stream,
        on_empty=left_out.add,
    )
    pace = f" at {rate:g}/s" if rate is not None else f" as timed, else at {RATE_PER_S:g}/s"
    return Traffic(found, options.path.name, pace, duration_s, left_out)
