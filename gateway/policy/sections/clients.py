"""Sections about clients: their keys, defaults, and which clients may reach the gateway."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.core.policy import MAX_VALUES
from gateway.policy.sections.section import Section, optional, plain
from gateway.policy.sections.values import HostName, Name, Origin, Sha256, Size


class KeySection(Section):
    """A client's key, known by its hash alone. `tailgate key new` makes one."""

    sha256: Sha256 = Field(description="SHA-256 of the key, 64 hexadecimal digits.")
    tenant: Name = Field(description="Who holds the key: limits are counted per tenant.")
    tier: Name | None = optional("The tier of this key; defaults.tier unless given.")


class DefaultsSection(Section):
    """Defaults of the policy."""

    tier: Name | None = optional("Tier of keys that name none, and of everybody where there are no keys.")


class ListenSection(Section):
    """Clients that may reach the gateway, and the limits on bodies."""

    open_on_any_address: bool = plain(
        False, "Serve without keys on addresses other than loopback: everybody who can reach the gateway may use it."
    )
    names: list[HostName] = plain(
        [], "Without keys: names that a Host header may have, besides localhost and the addresses of loopback."
    )
    origins: list[Origin] = plain(
        [], "Web pages that may use the API from a browser, such as https://chat.example; * is every page, with keys."
    )
    max_body: Size | None = optional(
        "Largest request body, decoded, at least 1KiB; more is 413. "
        "The process's TAILGATE_MAX_BODY_BYTES unless given, 16MiB by default."
    )
    max_values: Annotated[int, Field(ge=1000, le=1_000_000_000)] = plain(
        MAX_VALUES, "Most JSON values of one request body, names of fields included; more is 413."
    )
