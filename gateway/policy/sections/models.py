"""Sections about models: the names that clients may ask for, and where each is served."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from gateway.core import policy as rules
from gateway.policy.sections import values
from gateway.policy.sections.section import Section, optional, plain
from gateway.policy.sections.values import Count, CountOrZero, ModelName, Name, Share

ADAPTERS = ("listed", "none")
Adapters = Annotated[str, AfterValidator(values.one_of(ADAPTERS)), values.choice(ADAPTERS)]
ReportedName = Annotated[str, AfterValidator(values.one_of(rules.Report)), values.choice(rules.Report)]


class MirrorSection(Section):
    """A shadow pool that gets copies of a model's requests. Only the result of a copy is counted."""

    to: Name = Field(description="The shadow pool; no model may list it.")
    share: Share = Field(description="Share of the requests that are copied.")
    limit: Count = plain(8, "Largest number of copies under way.")
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
        "The model name in answers. asked: the name that the client asked for; upstream: the engine's own.",
    )
    adapters: Adapters = plain(
        "listed",
        "LoRA adapters of this model that replicas list in /v1/models. listed: served by their names; none: not.",
    )
    mirror: MirrorSection | None = optional("Copies of its requests to a shadow pool; none unless given.")
