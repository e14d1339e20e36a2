"""The prices section of a policy file. Prices only make reports: no request is treated differently."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.policy.sections.section import Section, optional, plain
from gateway.policy.sections.values import ModelName, Name

Price = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


class ModelPrices(Section):
    """Prices of a model, for a million tokens."""

    prompt: Price = Field(description="A million prompt tokens.")
    cached: Price | None = optional("A million prompt tokens that the engine had cached; as `prompt` unless given.")
    output: Price = Field(description="A million output tokens, reasoning included.")


class PricesSection(Section):
    """Prices for `tailgate usage`."""

    currency: Currency = plain("USD", "Currency of all prices, ISO 4217.")
    models: dict[ModelName, ModelPrices] = plain({}, "Prices of tokens, by model; *: of all others, LoRA adapters too.")
    replica_hours: dict[Name, Price] = plain({}, "By pool: the cost of one replica for an hour.")
