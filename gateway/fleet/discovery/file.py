"""Replicas from a file in Prometheus's format `file_sd`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gateway.access import POLL_FILES_S, stamps_of
from gateway.core.pool_spec import Discovery, FileSource
from gateway.fleet.discovery.source import Follower, Listing, SourceError, SourceTools


class _Group(msgspec.Struct):
    targets: list[str]
    labels: dict[str, str] = {}


class FileFollower(Follower):
    """Reads a file when it has changed, or could not be used. One that is damaged or missing changes nothing."""

    def __init__(self, source: FileSource, discovery: Discovery, tools: SourceTools) -> None:
        super().__init__(discovery, tools)
        self._path = Path(source.path)
        self._labels = dict(source.labels).items()

    async def run(self) -> None:
        seen = None
        while True:
            stamp = await asyncio.to_thread(stamps_of, (self._path,))
            if stamp != seen:
                try:
                    self._tools.told(await asyncio.to_thread(self.read))
                    seen = stamp
                except SourceError as error:
                    self._tools.failed(str(error))
            await asyncio.sleep(POLL_FILES_S)

    def read(self) -> Listing:
        """The addresses in the file. Raises `SourceError`."""
        try:
            text = self._path.read_bytes()
            found: object = self._parsed(text)
            groups = msgspec.convert(found, list[_Group])
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error.strerror}") from None
        except (msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
            said = f'is not a list such as [{{"targets": ["10.0.0.1:8000"]}}]: {error}'
            raise SourceError(f"{self._path} {said}") from None
        wanted = [group for group in groups if self._labels <= group.labels.items()]
        try:
            return Listing(frozenset(self._url(target) for group in wanted for target in group.targets))
        except SourceError as error:
            raise SourceError(f"{self._path}: the target {error}") from None

    def _parsed(self, text: bytes) -> object:
        try:
            if self._path.suffix in (".yml", ".yaml"):
                return YAML(typ="base", pure=True).load(text)
            return msgspec.json.decode(text)
        except (YAMLError, msgspec.DecodeError) as error:
            raise SourceError(f"{self._path} cannot be parsed: {str(error).splitlines()[0]}") from None
