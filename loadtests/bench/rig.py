"""Starts all parts of a measurement, each on its cores, and sends one load after another through it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from loadtests.bench.load import KINDS, Spec
from loadtests.bench.section import Raw
from loadtests.bench.targets import Running, Upstream, running
from loadtests.peers.install import FOLDER, Skipped
from loadtests.processes import Cores, on_cores

REPLICAS = 4


@contextmanager
def serving(interval_s: float, cores: Cores, replicas: int = REPLICAS) -> Iterator[Upstream]:
    """The cheap upstream in a process of its own; it ends when its stdin does. With openssl it serves TLS, too."""
    options = ["--ports", str(replicas), "--interval", str(interval_s)]
    certificate = _certificate()
    if certificate is not None:
        options += ["--certificate", str(certificate)]
    with on_cores(cores.load):
        process = subprocess.Popen(
            [sys.executable, "-m", "loadtests.bench.upstream", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=FOLDER.parent,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ports, *with_tls = json.loads(process.stdout.readline())
        tls = Upstream(tuple(with_tls[0]), interval_s, certificate) if with_tls else None
        yield Upstream(tuple(ports), interval_s, tls=tls)
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def _certificate() -> Path | None:
    """A file with a new certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    file = FOLDER / "run" / "upstream.pem"
    file.parent.mkdir(parents=True, exist_ok=True)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    name = ["-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, "req", "-x509", *curve, "-days", "2", *name, "-out", str(file), "-keyout", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file


def load(spec: Spec, cores: frozenset[int] | None) -> Raw:
    """Run one load on `cores` in a process of its own. Any entry under `errors` makes it void."""
    kind = next(name for name, of in KINDS.items() if isinstance(spec, of))
    with on_cores(cores):
        done = subprocess.run(
            [sys.executable, "-m", "loadtests.bench.load"],
            input=json.dumps({"kind": kind, **asdict(spec)}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=FOLDER.parent,
        )
    return cast(Raw, json.loads(done.stdout))


@dataclass(slots=True)
class Rig:
    """One upstream, the running targets in front of it, and the reasons why other targets could not start."""

    upstream: Upstream
    targets: dict[str, Running] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@contextmanager
def rig(names: Sequence[str], interval_s: float, cores: Cores, tell: Callable[[str], None]) -> Iterator[Rig]:
    """Start the upstream and every target that can be started here."""
    with ExitStack() as stack:
        built = Rig(stack.enter_context(serving(interval_s, cores)))
        for name in names:
            tell(f"starting {name}")
            try:
                built.targets[name] = stack.enter_context(running(name, built.upstream, cores.proxy))
            except Skipped as reason:
                built.skipped[name] = str(reason)
        yield built
