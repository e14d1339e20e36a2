"""A connection to a collector, by OTLP over HTTP or over gRPC, as OpenTelemetry's own variables say.

A variable of one signal, such as `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, wins over that of all signals.
"""

from __future__ import annotations

import gzip
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from ssl import SSLContext, SSLError, create_default_context
from typing import Final
from urllib.parse import unquote, urlsplit

import httpx
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from gateway.observe.otlp.attributes import attribute
from gateway.settings import SettingError

RETRIED = frozenset({429, 502, 503, 504})
"""Statuses after which OTLP wants a batch to be sent again."""
HTTP, GRPC = "http/protobuf", "grpc"


class Signal(StrEnum):
    """A kind of data, by its name in paths and variables."""

    TRACES = "traces"
    METRICS = "metrics"


SERVICES: Final = {
    Signal.TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    Signal.METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
"""Methods of gRPC."""


class Variables:
    """The variables of one signal."""

    def __init__(self, signal: Signal, environment: Mapping[str, str]) -> None:
        self.signal = signal
        self._environment = environment

    def get(self, name: str, default: str = "") -> tuple[str, str]:
        """(the variable that is set, its value)."""
        for variable in (f"OTEL_EXPORTER_OTLP_{self.signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
            if value := self._environment.get(variable):
                return variable, value
        return f"OTEL_EXPORTER_OTLP_{name}", default

    def timeout_s(self) -> float:
        """Seconds within which the collector must answer."""
        return seconds_of(*self.get("TIMEOUT", "10000"))

    def is_gzip(self) -> bool:
        """Whether messages are compressed."""
        variable, text = self.get("COMPRESSION", "none")
        if text not in ("gzip", "none"):
            raise SettingError(f"{variable} is {text!r:.40}: write gzip or none")
        return text == "gzip"

    def file(self, name: str) -> bytes | None:
        """The content of the file that a variable names."""
        variable, path = self.get(name)
        try:
            return Path(path).read_bytes() if path else None
        except OSError as error:
            raise SettingError(f"{variable}: {path:.200} cannot be read: {error.strerror}") from None


class Collector(ABC):
    """Sends messages, in a thread."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = shown(url)
        """For people: without a password."""
        self.timeout_s = timeout_s
        """Seconds within which the collector must answer."""

    @abstractmethod
    def send(self, message: bytes) -> tuple[str, bool]:
        """Send an encoded message. Returns (why it failed, or empty; whether it need not be sent again)."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


def collector(signal: Signal, environment: Mapping[str, str]) -> Collector:
    """The collector of a signal. Raises SettingError."""
    variables = Variables(signal, environment)
    variable, protocol = variables.get("PROTOCOL", HTTP)
    if protocol == HTTP:
        return HttpCollector(variables)
    if protocol == GRPC:
        return GrpcCollector(variables)
    raise SettingError(f"{variable} is {protocol!r:.40}: write {HTTP} or {GRPC}")


class HttpCollector(Collector):
    """A collector that takes OTLP over HTTP, on port 4318 by default."""

    def __init__(self, variables: Variables) -> None:
        variable, url = variables.get("ENDPOINT", "http://localhost:4318")
        try:
            parts = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise SettingError(f"{variable} is {shown(url)!r:.80} ({error}): write http://host:4318") from None
        if parts.scheme not in ("http", "https") or not parts.host:
            raise SettingError(f"{variable} is {shown(url)!r:.80}: write http://host:4318")
        if not variable.endswith(f"{variables.signal.upper()}_ENDPOINT"):
            url = f"{url.rstrip('/')}/v1/{variables.signal}"
        super().__init__(url, variables.timeout_s())
        self._target = url
        headers = {"content-type": "application/x-protobuf"} | _headers(variables)
        self._is_gzip = variables.is_gzip()
        if self._is_gzip:
            headers["content-encoding"] = "gzip"
        self._client = httpx.Client(headers=headers, verify=_verified(variables))

    def send(self, message: bytes) -> tuple[str, bool]:
        """See `Collector.send`."""
        content = gzip.compress(message, 1) if self._is_gzip else message
        try:
            answer = self._client.post(self._target, content=content, timeout=self.timeout_s)
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__, False
        if answer.is_success:
            return "", True
        return f"HTTP {answer.status_code}", answer.status_code not in RETRIED

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _verified(variables: Variables) -> SSLContext | bool:
    """How the collector's certificate is verified, and the own one that it is shown."""
    authority, own = variables.get("CERTIFICATE")[1], variables.get("CLIENT_CERTIFICATE")[1]
    if not authority and not own:
        return True
    try:
        context = create_default_context(cafile=authority or None)
        if own:
            context.load_cert_chain(own, variables.get("CLIENT_KEY")[1] or None)
    except (OSError, SSLError) as error:
        given = [
            f"{name} ({value})"
            for name, value in map(variables.get, ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
            if value
        ]
        raise SettingError(f"{' or '.join(given)} cannot be used: {error}") from None
    return context


class GrpcCollector(Collector):
    """A collector that takes OTLP over gRPC, on port 4317 by default."""

    def __init__(self, variables: Variables) -> None:
        try:
            import grpc
        except ModuleNotFoundError:
            raise SettingError("OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs grpcio: pip install 'tailgate[otel]'") from None
        variable, url = variables.get("ENDPOINT", "http://localhost:4317")
        parts = urlsplit(url if "://" in url else f"//{url}")
        if parts.scheme not in ("", "http", "https") or not parts.netloc or "@" in parts.netloc:
            raise SettingError(f"{variable} is {shown(url)!r:.80}: write http://host:4317")
        super().__init__(url, variables.timeout_s())
        insecure = parts.scheme == "http" or (not parts.scheme and variables.get("INSECURE")[1].lower() == "true")
        if insecure:
            self._channel = grpc.insecure_channel(parts.netloc)
        else:
            files = [variables.file(name) for name in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")]
            if (files[1] is None) is not (files[2] is None):
                raise SettingError("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _CLIENT_KEY: gRPC takes both or none")
            self._channel = grpc.secure_channel(parts.netloc, grpc.ssl_channel_credentials(*files))
        self._export = self._channel.unary_unary(SERVICES[variables.signal])
        self._metadata = [*_headers(variables).items()]
        self._compression = grpc.Compression.Gzip if variables.is_gzip() else grpc.Compression.NoCompression
        codes = grpc.StatusCode
        # The codes of the specification of OTLP.
        self._retried = (
            codes.CANCELLED,
            codes.DEADLINE_EXCEEDED,
            codes.ABORTED,
            codes.OUT_OF_RANGE,
            codes.UNAVAILABLE,
            codes.DATA_LOSS,
        )
        self._error = grpc.RpcError

    def send(self, message: bytes) -> tuple[str, bool]:
        """See `Collector.send`."""
        try:
            self._export(message, timeout=self.timeout_s, metadata=self._metadata, compression=self._compression)
        except self._error as error:
            code = error.code()
            return f"gRPC {code.name}: {error.details() or 'no details':.200}", code not in self._retried
        return "", True

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def shown(url: str) -> str:
    """A URL without user and password, for messages."""
    return re.sub(r"//.*@", "//", url)


def _headers(variables: Variables) -> dict[str, str]:
    """Headers of each message. They may hold a token, so that errors show none of them."""
    variable, text = variables.get("HEADERS")
    headers = {name.lower(): value for name, value in _pairs(variable, text).items()}
    for name, value in headers.items():
        if not re.fullmatch(r"[a-z0-9._-]+", name) or not re.fullmatch(r"[ -~]*", value):
            raise SettingError(
                f"{variable}: a name takes letters, digits, '.', '_' and '-', and a value printable ASCII characters"
            )
    return headers


def seconds_of(variable: str, text: str) -> float:
    """The seconds in a variable that is written in milliseconds. Raises SettingError."""
    if not text.isdigit() or not int(text):
        raise SettingError(f"{variable} is {text!r:.40}: write milliseconds, such as 10000")
    return int(text) / 1000


def resource(environment: Mapping[str, str]) -> Resource:
    """The names of this process. Raises SettingError."""
    name = environment.get("OTEL_SERVICE_NAME")
    told = {"service.name": "tailgate", "service.version": version("tailgate")}
    variable = "OTEL_RESOURCE_ATTRIBUTES"
    told |= _pairs(variable, environment.get(variable, "")) | ({"service.name": name} if name else {})
    return Resource(attributes=[attribute(name, value) for name, value in told.items()])


def _pairs(variable: str, text: str) -> dict[str, str]:
    """`name=value,name=value`, with escapes as in URLs. A part that is no pair is an error that shows no value."""
    pairs: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise SettingError(f"{variable} is not a list of pairs: write name=value,name=value")
        pairs[name.strip()] = unquote(value.strip())
    return pairs
