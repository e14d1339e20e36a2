"""`run.json`: all facts of a load test except its rows. Written at its end, read by reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
import orjson

from loadtests.replay.columns import Columns
from loadtests.replay.play import Played

FILE = "run.json"
VERSION = 2


@dataclass(frozen=True, slots=True)
class About:
    """The options of the test."""

    target: str
    traffic: str
    """The trace or workload, and its changes."""
    seed: int
    started_at: str
    """Start of the test, in ISO 8601."""
    planned_s: float | None
    """Planned seconds; None: until the end of a trace."""
    warmup_s: float
    """End of the warm-up: requests due before it are sent, but not counted."""
    max_late_s: float
    """Lateness (p99) beyond which nothing is reported."""
    length: str
    """How requests fix the length of answers: cap, exact or hidden."""
    clients: int | None = None
    """Clients of a closed loop; None: an open loop."""
    retries: int = 0
    policy: str | None = None
    """The policy file with the objectives."""
    unnamed_tier: str | None = None
    """The name for requests without a named tier; None if tiers are named."""
    probed: bool = False
    """Whether the target reported how it counts prompts."""
    own_words: bool = False
    """Whether the bodies were the user's own, so that nothing is known of their tokens."""
    shard: int = 1
    """Number of the own shard, from 1; 0: all of them, merged."""
    shards: int = 1
    begin_at_s: float | None = None
    """The wanted beginning, in seconds since 1970; None: as soon as possible."""
    condemned: list[str] = field(default_factory=list)
    """Why a merged test is not to be trusted."""
    left_out: list[str] = field(default_factory=list)
    """Fields of bodies that the target refused, so that requests went without them."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """A finished load test."""

    about: About
    played: Played
    tiers: list[str]
    """Names of tiers by their number in the rows; the two lists below likewise."""
    reasons: list[str]
    replicas: list[str]
    gaps: dict[str, dict[int, int]]
    """ITL by tier: counts by bucket of loadtests.replay.gaps."""
    version: int = VERSION
    messages: dict[str, str] = field(default_factory=dict)
    """The target's words about a reason, as it first said them."""


def write_run(folder: Path, about: About, played: Played, columns: Columns) -> None:
    """Write `run.json`. The columns must be closed before."""
    gaps = {
        tier: {bucket: count for bucket, count in enumerate(found.counts) if count}
        for tier, found in columns.gaps.items()
    }
    names = columns.tiers.names, columns.reasons.names, columns.replicas.names
    save_run(folder, RunFile(about, played, *names, gaps, messages=columns.messages))


def save_run(folder: Path, run: RunFile) -> None:
    """Write these facts to `run.json`."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2
    (folder / FILE).write_bytes(orjson.dumps(asdict(run), option=options))


def read_run(folder: Path) -> RunFile:
    """Read `run.json`. Raises ValueError that says what is wrong, or OSError."""
    path = folder / FILE
    try:
        raw = orjson.loads(path.read_bytes())
        if not isinstance(raw, dict):
            raise ValueError("is not the run.json of a load test")
        if raw.get("version") != VERSION:
            raise ValueError(f"is of version {raw.get('version')}, this load tester reads {VERSION}")
        return msgspec.convert(raw, RunFile, strict=False)
    except FileNotFoundError:
        raise ValueError(f"{folder}: there is no {FILE}: give the folder (--out) of a load test") from None
    except NotADirectoryError:
        raise ValueError(f"{folder} is a file: give the folder (--out) of a load test") from None
    except (orjson.JSONDecodeError, msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
