"""The server under test, and the bytes of a request to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

import orjson

from gateway.core.request import Endpoint
from gateway.sim.workload.arrivals import Arrival
from gateway.wire.http.headers import RETRY_COUNT
from loadtests.replay.keys import ALL, assigned
from loadtests.replay.prompts import Prompts
from loadtests.replay.written import Written, sent_body


class Length(StrEnum):
    """The way in which a request fixes the length of its answer."""

    CAP = "cap"
    """`max_tokens`: an upper bound, which any OpenAI-compatible target understands. Answers may be shorter."""
    EXACT = "exact"
    """`max_tokens`, with `min_tokens` and `ignore_eos`: vLLM and SGLang then generate exactly that many."""
    HIDDEN = "hidden"
    """`min_tokens` alone: for emulated replicas, whose answers end there. The gateway does not learn the length."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server with an OpenAI API. `keys` has the keys of each tier's tenants; the keys of `ALL` are for all other
    tiers.
    """

    url: str
    model: str | None = None
    """Model to ask for instead of the traffic's."""
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    length: Length = Length.CAP
    extra: Mapping[str, object] = field(default_factory=dict)
    """Fields to add to every body."""
    left_out: frozenset[str] = frozenset()
    """Fields that this server refuses, and that bodies therefore lack."""

    def __post_init__(self) -> None:
        if "@" in self.url:  # nothing else of it is shown: it may contain a password
            raise ValueError("a user name or password in an address is not sent: leave it out, and give a key")
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"{self.url} is not the address of a server: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self.url} is not the address of a server: write one such as http://127.0.0.1:8080")
        if parts.query or parts.fragment or parts.path.rstrip("/") not in ("", "/v1"):
            raise ValueError(f"{self.url}: leave out the part after host and port: /v1/chat/completions is added")

    @property
    def tls(self) -> bool:
        """Whether connections use TLS."""
        return urlsplit(self.url).scheme == "https"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if self.tls else 80)

    def key_of(self, tier: str, tenant: str) -> str:
        """The key for requests of a tenant; empty if they have none."""
        keys = self.keys.get(tier) or self.keys.get(ALL)
        return assigned(keys, tenant) if keys else ""


class Writer:
    """Writes whole requests."""

    def __init__(self, target: Target, prompts: Prompts) -> None:
        self._target = target
        self._prompts = prompts
        self._heads: dict[tuple[str, str], bytes] = {}
        """Heads of requests, by path and API key."""

    def request(self, number: int, arrival: Arrival, tries: int = 1) -> bytes:
        """Head and body of a request. As in SDKs, retries carry the number of earlier tries."""
        more = b"\r\n%b: %d" % (RETRY_COUNT, tries - 1) if tries > 1 else b""
        if isinstance(arrival, Written):
            body = {**sent_body(arrival, self._target.model, self._target.left_out), **self._target.extra}
            return self._whole(arrival, body, more, arrival.path)
        prompt = self._prompts.text(number, arrival.prompt_tokens, arrival.prefix)
        return self.chat(arrival, prompt, more)

    def chat(self, arrival: Arrival, prompt: str, more: bytes = b"") -> bytes:
        """Head and body of a chat request with a given prompt, and `more` lines in the head."""
        target = self._target
        body: dict[str, object] = {
            "model": target.model or arrival.model,
            "messages": [{"role": "user", "content": prompt}],
        }
        if arrival.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        match target.length:
            case Length.CAP:
                body["max_tokens"] = min(arrival.output_tokens, arrival.max_tokens or arrival.output_tokens)
            case Length.EXACT:
                wanted = min(arrival.output_tokens, arrival.max_tokens or arrival.output_tokens)
                body |= {"max_tokens": wanted, "min_tokens": wanted, "ignore_eos": True}
            case Length.HIDDEN:
                body["min_tokens"] = arrival.output_tokens
                if arrival.max_tokens is not None:
                    body["max_tokens"] = arrival.max_tokens
        for name in target.left_out:
            body.pop(name, None)
        return self._whole(arrival, {**body, **target.extra} if target.extra else body, more)

    def _whole(self, arrival: Arrival, body: dict[str, object], more: bytes, path: str = Endpoint.CHAT.value) -> bytes:
        raw = orjson.dumps(body)
        return b"%b%d%b\r\n\r\n%b" % (self._head(path, arrival.tier, arrival.tenant), len(raw), more, raw)

    def _head(self, path: str, tier: str, tenant: str) -> bytes:
        key = self._target.key_of(tier, tenant)
        if (path, key) not in self._heads:
            host, port = self._target.address
            host = f"[{host}]" if ":" in host else host
            authorization = f"authorization: Bearer {key}\r\n" if key else ""
            self._heads[path, key] = (
                f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\n{authorization}"
                "user-agent: tailgate-loadtests\r\ncontent-type: application/json\r\ncontent-length: "
            ).encode()
        return self._heads[path, key]
