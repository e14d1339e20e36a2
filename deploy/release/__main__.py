"""Writes the version, builds sdist, wheels, image, chart and SBOM into dist/, and tries the wheels."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from time import monotonic

from deploy.compiling.sources import PURE, obstacle
from deploy.release.changelog import NotReleasable, bumped, chart_bumped, released

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
CHART = ROOT / "deploy" / "helm" / "tailgate"
FIRST_ANSWER_S = 30.0
"""Longest time from an empty environment, with wheels at hand, to the first answer of the demo."""
IMAGE_BYTES = 150_000_000
"""Largest size of the compressed image."""
SAVING = {"docker": ("save", "-o"), "podman": ("save", "-o"), "buildah": ("push",)}
"""Programs that build images, the preferred one first, with the command that writes an image to a file."""


def main() -> None:
    """With a version: write it first. Exits with 1 if a check fails."""
    version = sys.argv[1] if sys.argv[1:] else ""
    try:
        if version:
            changes, project, about = ROOT / "CHANGELOG.md", ROOT / "pyproject.toml", CHART / "Chart.yaml"
            written = {
                changes: released(changes.read_text(), version),
                project: bumped(project.read_text(), version),
                about: chart_bumped(about.read_text(), version),
            }
            for path, text in written.items():
                path.write_text(text)
        build()
        chart()
        sbom()
        for wheel in sorted(DIST.glob("*.whl")):
            try_wheel(wheel)
        image()
    except NotReleasable as error:
        sys.exit(str(error))
    print("dist/:", *sorted(path.name for path in DIST.iterdir()), sep="\n  ")


def build() -> None:
    """The sdist, the wheel that runs everywhere, and a compiled one where there is a C compiler."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", pure="1")
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", pure="1")
    if problem := obstacle():
        print(f"no compiled wheel: {problem}")
    else:
        _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", pure="0")


def chart() -> None:
    """The chart as an archive, as `helm package` makes it."""
    with tarfile.open(DIST / f"tailgate-{_version()}.tgz", "w:gz") as archive:
        archive.add(CHART, "tailgate")


def sbom() -> None:
    """What the image contains, as CycloneDX, from the lock file with its hashes."""
    out = DIST / f"tailgate-{_version()}.cdx.json"
    program = Path(sys.executable).with_name("cyclonedx-py")
    form = ("--output-reproducible", "--of", "JSON", "--validate", "-o", str(out))
    _run(str(program), "requirements", "--pyproject", "pyproject.toml", *form, "requirements.lock")


def image() -> None:
    """The image for this machine's platform, as `docker load` reads it. Raises NotReleasable if it is too large."""
    program = next((name for name in SAVING if _works(name)), None)
    if program is None:
        print(f"no image: none of {', '.join(SAVING)} works here; the workflow of a tag builds it for two platforms")
        return
    tag, plain = f"tailgate:{_version()}", DIST / "image.tar"
    _run(program, "build", "-f", "deploy/Containerfile", "-t", tag, ".")
    to = (tag, f"docker-archive:{plain}:{tag}") if program == "buildah" else (str(plain), tag)
    _run(program, *SAVING[program], *to)
    packed = DIST / f"tailgate-{_version()}-image.tar.gz"
    with plain.open("rb") as read, gzip.open(packed, "wb", compresslevel=6) as written:
        shutil.copyfileobj(read, written)
    plain.unlink()
    if packed.stat().st_size > IMAGE_BYTES:
        raise NotReleasable(f"{packed.name} has {packed.stat().st_size:,} bytes, more than {IMAGE_BYTES:,}")


def try_wheel(wheel: Path) -> None:
    """Install a wheel, from a folder, into an empty environment, and run the demo to its first answer.

    Raises NotReleasable.
    """
    with tempfile.TemporaryDirectory() as made:
        folder, venv = Path(made, "wheels"), Path(made, "venv")
        _run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), str(wheel))
        started = monotonic()
        _run(sys.executable, "-m", "venv", str(venv))
        _run(str(venv / "bin" / "pip"), "install", "--quiet", "--no-index", "--find-links", str(folder), "tailgate")
        command = [str(venv / "bin" / "tailgate"), "demo", "--free-ports"]
        with subprocess.Popen(command, cwd=made, env=_environment(), stdout=subprocess.PIPE, text=True) as demo:
            assert demo.stdout is not None
            said = []
            for line in demo.stdout:
                said.append(line)
                if "Serving until Ctrl-C" in line:
                    break
            took_s = monotonic() - started
            demo.send_signal(signal.SIGINT)
            demo.communicate()
    if not any("tokens" in line and "100 out" in line for line in said):
        raise NotReleasable(f"the demo of {wheel.name} gave no answer:\n{''.join(said)}")
    print(f"{wheel.name}: the first answer {took_s:.0f} s after an empty environment")
    if took_s > FIRST_ANSWER_S:
        raise NotReleasable(f"that is more than {FIRST_ANSWER_S:.0f} s")


def _works(program: str) -> bool:
    """Whether it is installed, and reaches its daemon if it has one."""
    return shutil.which(program) is not None and not subprocess.run((program, "info"), capture_output=True).returncode


def _version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def _run(*command: str, pure: str | None = None) -> None:
    environment = _environment() | ({} if pure is None else {PURE: pure})
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise NotReleasable(f"{' '.join(command)} failed with {done.returncode}")


def _environment() -> dict[str, str]:
    """The environment without variables that lead Python to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TAILGATE_"))}


if __name__ == "__main__":
    main()
