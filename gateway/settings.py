"""Settings of one process, from the environment (`TAILGATE_...`) and the command line, which takes precedence.

Values that are the same for every process of a deployment belong in the policy file. The values here may differ between
processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, FilePath, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.wire.http.lines import can_be_token

PREFIX = "TAILGATE_"
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})
_TOKEN_CHARACTERS = 16
MAX_WORKERS = 64


def _not_a_service_link(value: object) -> object:
    # Kubernetes sets TAILGATE_PORT=tcp://... in every pod of a namespace with a Service called "tailgate".
    if isinstance(value, str) and "://" in value:
        raise ValueError("looks like a Kubernetes service link, not a port: set enableServiceLinks: false in the pod")
    return value


def _workers(value: object) -> object:
    text = str(value)
    if text != "auto" and not (text.isdecimal() and 1 <= int(text) <= MAX_WORKERS):
        raise ValueError(f"{text:.80} is not a number of processes: write 1 to {MAX_WORKERS}, or auto")
    return value


def _share(value: object) -> object:
    try:
        return float(value[:-1]) / 100 if isinstance(value, str) and value.endswith("%") else float(str(value))
    except ValueError:
        raise ValueError(
            f"{value!s:.80} is not a share: write a number from 0 to 1, or a percentage such as 1%"
        ) from None


def _usable(token: SecretStr) -> SecretStr:
    text = token.get_secret_value()
    if len(text) < _TOKEN_CHARACTERS:
        raise ValueError(f"is too short for a token: give at least {_TOKEN_CHARACTERS} characters")
    if not can_be_token(text):
        # A file or a Kubernetes secret often ends with a line end.
        raise ValueError("has a line end, a space or another character that no header can carry: give printable ASCII")
    return token


Port = Annotated[int, BeforeValidator(_not_a_service_link), Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SettingError(Exception):
    """The gateway cannot start with one of its settings. The message names it, and says why."""


class Settings(BaseSettings):
    """The addresses on which this process listens, and its limits on clients."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    host: str = Field(default="127.0.0.1", description="Address of the API.")
    port: Port = Field(default=8080, description="Port of the API; 0 takes a free one.")
    admin_host: str = Field(default="127.0.0.1", description="Address of metrics, state and control.")
    admin_port: Port = Field(default=9090, description="Port of metrics, state and control; 0 takes a free one.")
    admin_token: Annotated[SecretStr, AfterValidator(_usable)] | None = Field(
        default=None, description="Bearer token for actions: drain, reload."
    )
    admin_uds: Path | None = Field(
        default=None,
        description="A unix socket (mode 0660) for the admin API too; users who may open it need no token.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level logged: debug, info, warning or error."
    )
    log_format: Literal["text", "json"] = Field(default="text", description="Lines for people: text, or json.")
    admin_names: frozenset[str] = Field(
        default=frozenset(), description="Host names that the admin pages answer to, besides addresses and localhost."
    )
    workers: Annotated[int | Literal["auto"], BeforeValidator(_workers)] = Field(
        default=1,
        description="Processes that serve clients; auto takes as many as there are cores. With 1, there is one process "
        "in all; with more, another one decides for them.",
    )
    drain_deadline_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=30.0, description="Longest time that running requests are given to finish after SIGTERM."
    )
    drain_notice_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="Time before the drain in which /ready is 503 and requests are still accepted."
    )
    max_body_bytes: int = Field(
        default=16 * 2**20,
        ge=1024,
        description="Largest request body, decoded; more is 413. `listen.max_body` of the policy overrules it.",
    )
    max_receiving_bytes: int = Field(
        default=512 * 2**20,  # as much may arrive or run as may wait in a pool (`queue.bytes`)
        ge=1024,
        description="Bytes of all bodies that are received or have no answer yet; more is 503.",
    )
    max_header_bytes: int = Field(default=64 * 2**10, ge=1024, description="Largest request head; more is 431.")
    receive_timeout_s: Seconds = Field(
        default=10.0, description="A request, head and body, is received within this time of its first byte, or 408."
    )
    keep_alive_s: Seconds = Field(default=75.0, description="How long an idle connection is kept open.")
    write_stall_s: Seconds = Field(
        default=30.0, description="A client that reads nothing for this long while data waits for it is cut off."
    )
    max_connections: int | None = Field(
        default=None,
        ge=1,
        description="Clients at the same time; if not set, half of what file descriptors allow.",
    )
    ssl_certfile: FilePath | None = Field(default=None, description="Certificate chain: serve the API over TLS.")
    ssl_keyfile: FilePath | None = Field(default=None, description="Private key of the certificate.")
    journal: Path | None = Field(
        default=None, description="Write every decision to this file, to replay it later (docs/reference/journal.md)."
    )
    journal_file_bytes: int = Field(
        default=256 * 2**20, ge=2**20, description="Size at which the journal goes on in another file."
    )
    journal_files: int = Field(
        default=8, ge=1, le=1000, description="Files of the journal that are kept: FILE, FILE.1 (the one before) ..."
    )

    records: int = Field(
        default=20_000,
        ge=0,
        le=10_000_000,
        description="Records of ended requests that are kept in memory, for `tailgate why`; 0 keeps none.",
    )
    access_log: Path | None = Field(
        default=None,
        description="Write one JSON line for each request to this file, or to standard output if it is - "
        "(docs/reference/records.md).",
    )
    access_log_file_bytes: int = Field(
        default=256 * 2**20, ge=2**20, description="Size at which the access log goes on in another file."
    )
    access_log_files: int = Field(
        default=8, ge=1, le=1000, description="Files of the access log that are kept: FILE, FILE.1 (the one before) ..."
    )

    trace_share: Annotated[float, BeforeValidator(_share)] | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Export traces by OTLP: this share (0-1) of good requests, and all others (docs/guides/traces.md).",
    )
    otlp_metrics: bool = Field(default=False, description="Export the metrics by OTLP, too (docs/guides/traces.md).")
    usage: Path | None = Field(
        default=None,
        description="Keep who used what in this SQLite file, for `tailgate usage` (docs/guides/usage.md).",
    )
    state_dir: Path | None = Field(
        default=None,
        description="Keep what was learned in this directory, and begin with it after a restart "
        "(docs/operations/running.md).",
    )
    store: SecretStr | None = Field(
        default=None,
        description="redis://host:port/db, rediss://, unix://, or redis+sentinel://host,host/service/db: a Redis or "
        "Valkey over which gateways in front of the same replicas tell each other their loads, and their usage.",
    )

    @model_validator(mode="after")
    def _both_parts_of_tls(self) -> Settings:
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile is given without ssl_certfile: give both")
        return self

    @model_validator(mode="after")
    def _a_port_for_each(self) -> Settings:
        hosts = {"127.0.0.1" if host == "localhost" else host for host in (self.host, self.admin_host)}
        if self.port == self.admin_port != 0 and (len(hosts) == 1 or hosts & _EVERY_ADDRESS):
            both = "--port (TAILGATE_PORT) and --admin-port (TAILGATE_ADMIN_PORT)"
            raise ValueError(f"{both} are both {self.port}: give them different ports, 0 takes a free one")
        return self

    @model_validator(mode="after")
    def _room_for_one_body(self) -> Settings:
        if self.max_receiving_bytes < self.max_body_bytes:
            raise ValueError("max_receiving_bytes is less than max_body_bytes: give at least as much")
        return self

    def body_limit_error(self, max_body_bytes: int | None) -> str | None:
        """Why a policy with this `listen.max_body` (bytes) cannot be used; None if it can be used."""
        if max_body_bytes is None or max_body_bytes <= self.max_receiving_bytes:
            return None
        return (
            f"listen.max_body is {max_body_bytes} bytes, and all unfinished bodies together may have "
            f"{self.max_receiving_bytes}: lower it, or raise TAILGATE_MAX_RECEIVING_BYTES"
        )


def strangers(environment: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Environment variables that look like settings but are unknown, each with the name that was probably meant.

    Variables that Kubernetes sets for a Service called "tailgate" are left out.
    """
    known = [PREFIX + name.upper() for name in Settings.model_fields] + [PREFIX + "KEY", PREFIX + "PURE"]
    found = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known and not _SERVICE_LINK.fullmatch(name):
            found.append((name, next(iter(get_close_matches(name, known, 1, 0.8)), None)))
    return found


_SERVICE_LINK = re.compile(PREFIX + r"(ADMIN_)?(SERVICE_(HOST|PORT)|PORT)(_\w+)?")
