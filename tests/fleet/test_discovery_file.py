"""Addresses are read from a file in Prometheus's format, and again when it changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.core.pool_spec import Discovery, FileSource
from gateway.fleet.discovery import file
from gateway.fleet.discovery.file import FileFollower
from gateway.fleet.discovery.source import Listing, SourceError, SourceTools

from .replicas import until


def follower(
    path: Path, *labels: tuple[str, str], scheme: str = "http", prefix: str = ""
) -> tuple[FileFollower, list[Listing], list[str]]:
    told: list[Listing] = []
    failed: list[str] = []
    source = FileSource(str(path), labels)
    discovery = Discovery((source,), scheme, prefix)
    return FileFollower(source, discovery, SourceTools(told.append, failed.append)), told, failed


TARGETS = """[{"targets": ["10.0.0.1:8000", "[::1]:8001"], "labels": {"pool": "long", "zone": "a"}},
{"targets": ["https://llm.example/llama", "10.0.0.1:8000"]}]"""


def test_targets_are_addresses_or_urls_of_replicas(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(TARGETS)
    one, _, _ = follower(tmp_path / "f.json", prefix="/x")
    urls = {"http://10.0.0.1:8000/x", "http://[::1]:8001/x", "https://llm.example:443/llama"}
    assert one.read() == Listing(frozenset(urls))


def test_entries_without_the_labels_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(TARGETS)
    one, _, _ = follower(tmp_path / "f.json", ("pool", "long"))
    assert one.read().urls == {"http://10.0.0.1:8000", "http://[::1]:8001"}
    one, _, _ = follower(tmp_path / "f.json", ("pool", "short"))
    assert one.read().urls == frozenset()


def test_yaml_is_read_by_the_end_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "f.yml").write_text("- targets: ['10.0.0.1:8000']\n  labels: {pool: long}\n")
    assert follower(tmp_path / "f.yml")[0].read().urls == {"http://10.0.0.1:8000"}


@pytest.mark.parametrize("label", ["2001-02-30", "007", "yes", "!!int x"])
def test_labels_in_yaml_are_text_as_they_are_written(tmp_path: Path, label: str) -> None:
    (tmp_path / "f.yml").write_text(f"- targets: ['10.0.0.1:8000']\n  labels: {{a: {label}}}\n")
    one, _, _ = follower(tmp_path / "f.yml", ("a", label.removeprefix("!!int ")))
    assert one.read().urls == {"http://10.0.0.1:8000"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("f.json", None, "cannot be read: No such file or directory"),
        ("f.json", "[{", "cannot be parsed: Input data was truncated"),
        ("f.yaml", "[{", "cannot be parsed: while parsing"),
        ("f.json", "{}", 'is not a list such as [{"targets": ["10.0.0.1:8000"]}]: Expected `array`, got `object`'),
        ("f.json", '[{"targets": "a:1"}]', "Expected `array`, got `str` - at `$[0].targets`"),
        ("f.json", '[{"targets": ["a b:1"]}]', "the target 'a b:1' is not a URL of a replica: write http://host:port"),
        ("f.json", '[{"targets": ["10.0.0.1"]}]', "the target '10.0.0.1' has no port: write host:port"),
        ("f.json", '[{"targets": ["[::1]"]}]', "the target '[::1]' has no port: write host:port"),
        ("f.json", '[{"targets": ["u:p@a:1"]}]', "has a user name or password in it"),
        ("f.yaml", "\xff", 'is not a list such as [{"'),
    ],
)
def test_damaged_file_is_named_with_the_fault(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(SourceError) as caught:
        follower(path)[0].read()
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


async def test_file_is_read_again_when_it_has_changed_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(TARGETS)
    one, told, failed = follower(path)
    task = asyncio.create_task(one.run())
    await until(lambda: len(told) == 1)
    path.write_text("[{")
    await until(lambda: "cannot be parsed" in str(failed))
    path.unlink()
    await until(lambda: "cannot be read" in str(failed))
    fresh = tmp_path / "fresh"
    fresh.write_text(json.dumps([{"targets": ["10.0.0.9:1"]}]))
    fresh.replace(path)
    await until(lambda: len(told) == 2)
    assert told[1].urls == {"http://10.0.0.9:1"}
    task.cancel()


async def test_file_that_could_not_be_opened_is_read_again_though_it_has_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f.json").write_text(TARGETS)
    one, told, failed = follower(tmp_path / "f.json")
    read, errors = one.read, [SourceError("Too many open files")]
    monkeypatch.setattr(file, "POLL_FILES_S", 0.01)

    def fails_first() -> Listing:
        if errors:
            raise errors.pop()
        return read()

    monkeypatch.setattr(one, "read", fails_first)
    task = asyncio.create_task(one.run())
    await until(lambda: bool(told))
    task.cancel()
    assert failed == ["Too many open files"]
