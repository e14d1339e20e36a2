"""The models that the replicas serve, and the answer to GET /v1/models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypedDict

from gateway.core.policy import Model, Policy, PoolSpec, Tier
from gateway.core.serving import models_of, open_catch_all
from gateway.fleet.models_json import ModelCard
from gateway.wire.body.checks import can_name_model

CATCH_ALL = "*"


class Listed(TypedDict):
    """One model as the API lists it. `root`: the model's own name, even if the entry is for an alias."""

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None


class ModelBoard:
    """Models of each replica, from its last answer. The models of a replica that has not answered yet are unknown."""

    def __init__(self, created_unix_s: int) -> None:
        """`created_unix_s`: the field `created` of every model in the API."""
        self._created_unix_s = created_unix_s
        self._cards: dict[str, tuple[ModelCard, ...]] = {}
        self._adapters: set[str] = set()
        """Names that any replica lists as a LoRA adapter."""

    def put(self, replica: str, cards: tuple[ModelCard, ...]) -> None:
        """Set the models of a replica. They are kept until its next list, even while it cannot be read."""
        self._cards[replica] = cards
        self._count()

    def forget(self, replica: str) -> None:
        """Forget the models of `replica`, because it was removed or another replica now has its name."""
        self._cards.pop(replica, None)
        self._count()

    def _count(self) -> None:
        self._adapters = {card.id for cards in self._cards.values() for card in cards if card.parent is not None}

    def max_model_len(self, pool: PoolSpec, upstream_model: str) -> int | None:
        """The smallest `max_model_len` (tokens) of the replicas that know the model; None if none gives it."""
        least = None
        for card in self._pool_cards(pool):
            if card.id == upstream_model:
                least = _least(least, card.max_model_len)
        return least

    def known(self, pool: PoolSpec) -> frozenset[str] | None:
        """The models of a pool; None until the lists of all its replicas have been read.

        Until then any model is accepted: a replica whose list is unread may serve models that the others do not.
        """
        if not pool.replicas or not all(replica.name in self._cards for replica in pool.replicas):
            return None
        return frozenset(card.id for card in self._pool_cards(pool))

    def listing(self, policy: Policy, tier: Tier | None = None) -> list[Listed]:
        """The answer to GET /v1/models: the policy's models and aliases. With a catch-all, also the models that
        replicas list.

        With `tier`, only models that this tier may use.
        """
        listed = {
            name: self._listed(policy, name, model, tier)
            for name, model in policy.models.items()
            if not model.any_name and name != CATCH_ALL and _pools(policy, model, tier)
        }
        for model in policy.models.values():
            for name in self._adapters_of(policy, model, tier):
                if name not in policy.models and name not in listed:
                    listed[name] = self._listed_adapter(policy, name, model, tier)
        catch_all = policy.models.get(CATCH_ALL)
        if catch_all is not None:
            for pool in _pools(policy, catch_all, tier):
                for card in self._pool_cards(pool):
                    if card.id not in policy.models and card.id not in listed:
                        listed[card.id] = self._listed(policy, card.id, catch_all, tier)
        return list(listed.values())

    def usable(self, policy: Policy, tier: Tier) -> list[str]:
        """Names of all models that `tier` may use, each once: without aliases and LoRA adapters. With a catch-all
        without `upstream`, also the models that replicas list, if a request could name them.
        """
        names = dict.fromkeys(models_of(policy, tier))
        catch_all = open_catch_all(policy)
        for pool in () if catch_all is None else policy.route(catch_all, tier):
            for card in self._pool_cards(pool):
                if card.parent is None and card.id not in policy.models and can_name_model(card.id):
                    names[card.id] = None
        return list(names)

    def one(self, policy: Policy, name: str, tier: Tier | None = None) -> Listed | None:
        """The answer to GET /v1/models/{id}: the model that a request for `name` would reach; None if there is none.

        With a catch-all, any name is accepted while a replica's list is unknown.
        """
        base = self.base_of(policy, name, tier)
        if base is not None:
            return self._listed_adapter(policy, name, base, tier)
        model = policy.model(name)
        if model is None or name == CATCH_ALL:
            return None
        pools = _pools(policy, model, tier)
        if not pools:
            return None
        if model.any_name:
            known = [self.known(pool) for pool in pools]
            if not any(ids is None or (model.upstream or name) in ids for ids in known):
                return None
        return self._listed(policy, name, model, tier)

    def base_of(self, policy: Policy, name: str, tier: Tier | None = None) -> Model | None:
        """The model whose replicas list `name` as a LoRA adapter; None if there is none, or if `name` is in the
        policy.
        """
        if name in policy.models or name not in self._adapters:
            return None
        for model in policy.models.values():
            if name in self._adapters_of(policy, model, tier):
                return model
        return None

    def is_adapter(self, pools: Iterable[PoolSpec], name: str) -> bool:
        """Whether replicas of these pools list `name` as a LoRA adapter."""
        return name in self._adapters and any(
            card.id == name and card.parent is not None for pool in pools for card in self._pool_cards(pool)
        )

    def _adapters_of(self, policy: Policy, model: Model, tier: Tier | None) -> Iterator[str]:
        """Names of the adapters of a model, as its replicas list them."""
        if self._adapters and model.has_adapters and not model.split and not model.any_name:
            for pool in _pools(policy, model, tier):
                for card in self._pool_cards(pool):
                    if card.parent is not None and card.parent == model.sent_as(model.name):
                        yield card.id

    def _listed_adapter(self, policy: Policy, name: str, base: Model, tier: Tier | None) -> Listed:
        lengths = [self.max_model_len(pool, name) for pool in _pools(policy, base, tier)]
        return Listed(
            id=name,
            object="model",
            created=self._created_unix_s,
            owned_by="tailgate",
            root=name,
            parent=base.name,
            max_model_len=max((length for length in lengths if length is not None), default=None),
        )

    def _listed(self, policy: Policy, name: str, model: Model, tier: Tier | None) -> Listed:
        arms = [policy.models[arm] for arm, _ in model.split] or [model]
        lengths = [self._length(policy, arm, arm.sent_as(name), tier) for arm in arms]
        return Listed(
            id=name,
            object="model",
            created=self._created_unix_s,
            owned_by="tailgate",
            root=name if model.any_name else model.name,
            parent=None,
            max_model_len=min((length for length in lengths if length is not None), default=None),
        )

    def _length(self, policy: Policy, model: Model, upstream: str, tier: Tier | None) -> int | None:
        """The longest context (tokens) over all pools of the model, because a prompt is routed to a pool that takes
        it.
        """
        lengths = [self.max_model_len(pool, upstream) for pool in _pools(policy, model, tier)]
        return max((length for length in lengths if length is not None), default=None)

    def _pool_cards(self, pool: PoolSpec) -> Iterator[ModelCard]:
        for replica in pool.replicas:
            yield from self._cards.get(replica.name, ())


def _pools(policy: Policy, model: Model, tier: Tier | None) -> tuple[PoolSpec, ...]:
    if tier is None:
        return tuple(policy.pools[name] for name in model.pools)
    return policy.route(model, tier)


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
