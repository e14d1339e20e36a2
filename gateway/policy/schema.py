"""The whole of a policy file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from gateway.core import policy as rules
from gateway.policy.sections import values
from gateway.policy.sections.pools import PoolSection
from gateway.policy.sections.section import Section, nested, optional, plain
from gateway.policy.sections.tiers import TierSection
from gateway.policy.sections.values import (
    Count,
    CountOrZero,
    HostName,
    ModelName,
    Name,
    Origin,
    Sha256,
    Share,
    Size,
    Text,
)

ADAPTERS = ("listed", "none")
Adapters = Annotated[str, AfterValidator(values.one_of(ADAPTERS)), values.choice(ADAPTERS)]
ReportedName = Annotated[str, AfterValidator(values.one_of(rules.Report)), values.choice(rules.Report)]


class MirrorSection(Section):
    """A shadow pool that gets copies of a model's requests. Its answers are thrown away and never counted."""

    to: Name = Field(description="The shadow pool; no model may list it.")
    share: Share = Field(description="Share of the requests that are copied.")
    limit: Count = plain(8, "Copies under way at the same time; none are made beyond it.")
    upstream: ModelName | None = optional("The name the shadow pool knows the model by; the same unless given.")


class ModelSection(Section):
    """A model name that clients may ask for, and where it is served."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["pools"]}, {"required": ["split"]}]})

    pools: Annotated[list[Name], Field(min_length=1)] | None = optional(
        "Pools that serve this model, in the order they are tried."
    )
    split: Annotated[dict[ModelName, CountOrZero], Field(min_length=1)] | None = optional(
        "Instead of pools: other models that share its requests, each with its weight. A session keeps its model."
    )
    aliases: list[ModelName] = plain([], "Other names that clients may use for it.")
    upstream: ModelName | None = optional("The name the replicas know it by; the model's own name unless given.")
    report: ReportedName = plain(
        rules.Report.ASKED.value,
        "Which name stands in answers. asked: the one that the client asked for; upstream: the engine's own.",
    )
    adapters: Adapters = plain(
        "listed",
        "LoRA adapters of this model that replicas list in /v1/models. listed: served by their names; none: not.",
    )
    mirror: MirrorSection | None = optional("Copies of its requests to a shadow pool; none unless given.")
    tokenizer: Text | None = optional(
        "Path of a tokenizer.json, relative to this file, for exact prompt lengths; "
        "without it the ratio of tokens to characters is learned from the replicas' usage."
    )


class KeySection(Section):
    """A client's key, known by its hash alone. `tailgate key new` makes one."""

    sha256: Sha256 = Field(description="SHA-256 of the key, 64 hexadecimal digits.")
    tenant: Name = Field(description="Who holds the key: limits are counted per tenant.")
    tier: Name | None = optional("The tier of this key; defaults.tier unless given.")


class DefaultsSection(Section):
    """Defaults of the policy."""

    tier: Name | None = optional("Tier of keys that name none, and of everybody where there are no keys.")


class ListenSection(Section):
    """Clients that may reach the gateway, and the largest body."""

    open_on_any_address: bool = plain(
        False, "Serve without keys on addresses other than loopback: whoever can reach it may use it."
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


class PolicyFile(Section):
    """A tailgate policy: which models there are, where they are served, and what each tier of clients gets."""

    model_config = ConfigDict(title="tailgate policy")

    apiVersion: Literal["tailgate/v1"] = Field(description="The version of this format.")
    kind: Literal["Policy"] = plain("Policy", "Always Policy.")
    models: dict[ModelName, ModelSection] = Field(
        min_length=1, description="Names that clients may ask for. The name * takes every name that is not listed."
    )
    pools: dict[Name, PoolSection] = Field(min_length=1, description="Groups of replicas that are alike.")
    tiers: dict[Name, TierSection] = Field(min_length=1, description="Classes of service.")
    keys: list[KeySection] = plain([], "Who may use the gateway. Without any key everybody may, on loopback only.")
    defaults: DefaultsSection = nested(DefaultsSection(), "What holds where nothing else is said.")
    listen: ListenSection = nested(ListenSection(), "Who may reach the gateway, and with how large a body.")
