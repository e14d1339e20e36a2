"""Clients of the store, by its URL: a Redis or Valkey, or the one that Sentinels name as the master of a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from gateway.settings import SettingError

WRONG_URL: Final = (
    "--store: write redis://user:password@host:6379/0, rediss:// for TLS, unix:///path, or "
    "redis+sentinel://host:26379,host:26379/service/0; in a password write %2F for /, %23 for # and %40 for @"
)
MISSING: Final = "--store needs the extra `fleet`: pip install 'tailgate[fleet]'"
SENTINEL: Final = "+sentinel"
SENTINEL_PORT: Final = 26379
FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
OPTIONS: Final = ("db", *FILES, "ssl_check_hostname", "client_name", "sentinel_username", "sentinel_password")
"""Allowed in the query of the URL. For others, redis-py would raise only once it connects."""


class StoreError(SettingError):
    """The store cannot be used as configured. The text says why, without a password."""


def reason_of(error: Exception) -> str:
    """The text of an error of a store. Those of Sentinels go on with the insides of each client."""
    return str(error).partition(" : <")[0]


class StoreClients:
    """Makes clients of one store. They try nothing again: the caller's next round is the next try."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """`timeout_s`: longest wait for a connection, and for an answer.

        Raises StoreError if the extra `fleet` is not installed, or the URL is none.
        """
        try:
            from redis import asyncio as client  # imported here, because only `--store` needs it
            from redis import connection
            from redis.backoff import NoBackoff
            from redis.retry import Retry
            from redis.sentinel import Sentinel
        except ImportError:
            raise StoreError(MISSING) from None
        self._asyncio: Any = client
        parse: Any = connection.parse_url
        retry: Any = Retry
        no_backoff: Any = NoBackoff
        self._sentinel: Any = Sentinel
        self._never: Callable[[], Any] = lambda: retry(no_backoff(), 0)
        self._timeout_s = timeout_s
        self._sentinels: list[tuple[str, int]] = []
        self._service = ""
        self._asked: Any = None
        """The Sentinels as asyncio clients, once one was asked."""
        try:
            plain = self._without_sentinels(url) if SENTINEL in url.partition("://")[0] else url
            self._options: dict[str, Any] = dict(parse(plain))
        except ValueError:  # its text may have a part of the password
            raise StoreError(WRONG_URL) from None
        if not ("path" in self._options or "db" in self._options or not urlsplit(plain).path.strip("/")):
            raise StoreError(WRONG_URL)  # redis-py would use database 0
        _check_options(urlsplit(plain))
        self._url = plain
        self._of_sentinels = {
            name: self._options.pop(f"sentinel_{name}")
            for name in ("username", "password")
            if f"sentinel_{name}" in self._options
        }
        server = f"{self._options.get('host', 'localhost')}:{self._options.get('port', 6379)}"
        self.address = str(self._options.get("path") or server)
        if self._service:
            self.address = f"{self._service} by {','.join(f'{host}:{port}' for host, port in self._sentinels)}"

    def _without_sentinels(self, url: str) -> str:
        """Read `scheme+sentinel://user:password@host:port,host:port/service/db?options`. Returns the URL of a server
        with the same user, database and options. Raises ValueError.
        """
        given = urlsplit(url)
        user, at, hosts = given.netloc.rpartition("@")
        self._service, _, database = given.path.strip("/").partition("/")
        for host in hosts.split(","):
            place = urlsplit(f"//{host}")
            if not place.hostname or not self._service:
                raise ValueError(url)
            self._sentinels.append((place.hostname, place.port or SENTINEL_PORT))
        query = f"?{given.query}" if given.query else ""
        return f"{given.scheme.removesuffix(SENTINEL)}://{user}{at}localhost/{database}{query}"

    def connect(self) -> Any:
        """An asyncio client."""
        if not self._service:
            return self._asyncio.Redis.from_url(self._url, single_connection_client=True, **self._waits())
        if self._asked is None:
            self._asked = self._by_sentinels(self._asyncio.Sentinel)
        return self._asked.master_for(self._service)

    def connect_blocking(self) -> Any:
        """A client for a thread."""
        if not self._service:
            from redis import Redis

            return Redis.from_url(self._url, **self._waits())
        return self._by_sentinels(self._sentinel).master_for(self._service)

    async def aclose(self) -> None:
        """Close what connections to Sentinels there are."""
        asked, self._asked = self._asked, None
        for sentinel in () if asked is None else asked.sentinels:
            await sentinel.aclose()

    def _waits(self) -> dict[str, Any]:
        return {
            "retry": self._never(),
            "socket_timeout": self._timeout_s,
            "socket_connect_timeout": self._timeout_s,
        }

    def _by_sentinels(self, kind: Any) -> Any:
        """Sentinels of a kind, asyncio or blocking. All together take half of the time, so that one that is down
        leaves some for the others and the master.
        """
        options = {name: value for name, value in self._options.items() if name not in ("host", "port")}
        tls: Mapping[str, Any] = {name: value for name, value in options.items() if name.startswith("ssl_")}
        if options.pop("connection_class", None) is not None:
            options["ssl"] = True
            tls = {**tls, "ssl": True}
        each_s = self._timeout_s / (2 * len(self._sentinels))
        waits = {"retry": self._never(), "socket_timeout": each_s, "socket_connect_timeout": each_s}
        return kind(
            self._sentinels, sentinel_kwargs={**waits, **tls, **self._of_sentinels}, **{**options, **self._waits()}
        )


def _check_options(url: SplitResult) -> None:
    """Raises StoreError if the query of the URL has an option that cannot be used."""
    if "@" in url.query:
        raise StoreError(WRONG_URL)  # it may be the end of a password
    for name, value in parse_qsl(url.query):
        if name not in OPTIONS:
            raise StoreError(f"--store: its URL has an unknown option {name}: write one of {', '.join(OPTIONS)}")
        if name.startswith("ssl_") and url.scheme != "rediss":
            raise StoreError(f"--store: {name} is for TLS: write rediss://")
        if name in FILES and not Path(value).exists():
            raise StoreError(f"--store: {name}: there is no file {value}")
