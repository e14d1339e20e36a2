"""A large policy is read in a process of its own, with the same result and the same errors."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import pytest

from gateway.core.policy import Policy
from gateway.policy import PolicyErrors, load
from gateway.policy.apart import MIN_BYTES, load_apart

from .sample import SAMPLE

KEYS = [f"  - {{sha256: f{number:063x}, tenant: t{number}}}" for number in range(100, 800)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A policy of more than `MIN_BYTES`."""
    path = tmp_path / "policy.yaml"
    path.write_text(SAMPLE.replace("keys:\n", "keys:\n" + "\n".join(KEYS) + "\n"))
    assert path.stat().st_size > MIN_BYTES
    return path


def cpu_s(read: object, path: Path) -> float:
    """CPU seconds of this process, without its children."""
    assert callable(read)
    gc.collect()
    began = time.process_time()
    read(path)
    return time.process_time() - began


def test_policy_read_apart_is_the_same(path: Path) -> None:
    apart, here = load_apart(path), load(path)
    assert isinstance(apart, Policy)
    assert apart == here
    assert apart.digest == here.digest


def test_errors_of_a_policy_read_apart_are_the_same(path: Path) -> None:
    path.write_text(path.read_text().replace("slots: 8", "slots: none").replace("tenant: t100}", "tenant: ''}"))
    with pytest.raises(PolicyErrors) as here:
        load(path)
    with pytest.raises(PolicyErrors) as apart:
        load_apart(path)
    assert apart.value.errors == here.value.errors


def test_large_policy_costs_this_process_a_small_part_of_its_parsing(path: Path) -> None:
    here_s, apart_s = (min(cpu_s(read, path) for _ in range(3)) for read in (load, load_apart))
    assert apart_s < 0.25 * here_s


def test_process_that_cannot_be_started_is_named_in_the_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(PolicyErrors, match="the process that parses it ended with status 1"):
        load_apart(path)


def test_file_that_is_gone_is_an_error_of_the_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyErrors, match="cannot be read: No such file or directory"):
        load_apart(tmp_path / "none.yaml")
