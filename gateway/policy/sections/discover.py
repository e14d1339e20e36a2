"""The section of a pool that says where its replicas are found."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.core import pool_spec
from gateway.policy.sections import values
from gateway.policy.sections.section import Section, duration, optional, plain
from gateway.policy.sections.values import (
    MAX_RANKS,
    Duration,
    FileName,
    HostName,
    Name,
    PathPrefix,
    Port,
    Server,
    Span,
    Text,
    Url,
)

SOURCES = ("file", "dns", "kubernetes")
"""Fields of `discover` that say where replicas are found."""

_DISCOVERY = pool_spec.Discovery(())
SCHEMES = tuple(values.PORTS)
Scheme = Annotated[str, AfterValidator(values.one_of(SCHEMES)), values.choice(SCHEMES)]
Record = Annotated[str, AfterValidator(values.one_of(pool_spec.DnsRecord)), values.choice(pool_spec.DnsRecord)]


class FromText(Section):
    """A section that may be written as just the value of its first field."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {next(iter(cls.model_fields)): value} if isinstance(value, str | int | float) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core)]}


class FileSection(FromText):
    """Replicas from a file in the format of Prometheus's `file_sd`."""

    path: FileName = Field(description="The file, in JSON or YAML by the end of its name.")
    labels: dict[Text, str] = plain({}, "Only entries with all these labels count.")


class DnsSection(FromText):
    """Replicas from DNS."""

    name: HostName = Field(description="The name, as in vllm.example. With `type: SRV` as in _http._tcp.vllm.example.")
    port: Port | None = optional("Port of the replicas; needed unless `type` is SRV.")
    type: Record = plain(
        pool_spec.DnsRecord.ADDRESSES.value,
        "A: each address of A and AAAA records is a replica. SRV: each address of each target, at its port.",
    )
    server: Server | None = optional("Server to ask, as address:port; those of the system unless given.")
    interval: Duration = duration(
        pool_spec.DnsSource("").interval_s, "Time between two questions; longer if the TTL is known and longer."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        name, _, port = value.rpartition(":")
        return {"name": name, "port": int(port)} if name and port.isdecimal() else {"name": value}


class KubernetesSection(FromText):
    """Replicas from the EndpointSlices of a Kubernetes service."""

    service: Name = Field(description="The service, with or without a cluster address.")
    namespace: Name | None = optional("Its namespace; that of the gateway's pod unless given.")
    port: Port | Name | None = optional("Name or number of the port; needed if the service has several.")
    labels: dict[Text, str] = plain({}, "Only slices with all these labels count.")
    server: Url | None = optional("URL of the API server; that of the gateway's own cluster unless given.")
    token_file: FileName | None = optional("File with a token for it, read again for each request; the pod's own.")
    ca_file: FileName | None = optional("Certificates to trust, in PEM; the pod's own.")


class DiscoverSection(Section):
    """Where a pool finds its replicas, besides those that it lists."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [source]} for source in SOURCES]})

    file: FileSection | None = optional("A file with targets, read again when it changes.")
    dns: DnsSection | None = optional("A name in DNS, or name:port.")
    kubernetes: KubernetesSection | None = optional("A Kubernetes service.")
    scheme: Scheme = plain(_DISCOVERY.scheme, "Scheme of the replicas' URLs.")
    path: PathPrefix | None = optional("Path of the replicas' URLs before /v1; none unless given.")
    dp: Annotated[int, Field(ge=1, le=MAX_RANKS)] = plain(_DISCOVERY.dp, "Data-parallel ranks behind each address.")
    hold_down: Span = duration(
        _DISCOVERY.hold_down_s,
        "Within this time at most a third of the replicas is removed, and an address that comes and goes stays.",
    )
