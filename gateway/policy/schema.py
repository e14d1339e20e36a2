"""The top level of a policy file."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from gateway.policy.sections.clients import DefaultsSection, KeySection, ListenSection
from gateway.policy.sections.models import ModelSection
from gateway.policy.sections.pools import PoolSection
from gateway.policy.sections.prices import PricesSection
from gateway.policy.sections.section import Section, nested, plain
from gateway.policy.sections.tiers import TierSection
from gateway.policy.sections.values import ModelName, Name


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
    prices: PricesSection = nested(PricesSection(), "Prices for reports of usage.")
    listen: ListenSection = nested(ListenSection(), "Who may reach the gateway, and with how large a body.")
