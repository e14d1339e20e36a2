"""The models that the replicas serve, and the answer to GET /v1/models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

from gateway.core.policy import Model, Policy, Tier
from gateway.core.pool_spec import PoolSpec
from gateway.core.serving import models_of, open_catch_all
from gateway.fleet.models_json import ModelCard, names_of
from gateway.wire.body.checks import can_name_model

CATCH_ALL = "*"


Rows = Sequence[tuple[str, int | None, str | None]]
"""The fields of model cards, for another process."""


class Listed(TypedDict):
    """One model as the API lists it. `root`: the model's own name, even if the entry is for an alias."""

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None


class PoolModels:
    """The lists of a pool's replicas, joined: its models by name, in the order of the lists."""

    __slots__ = ("cards", "is_known", "pool")

    def __init__(self, pool: PoolSpec, lists: Mapping[str, tuple[ModelCard, ...]]) -> None:
        self.pool = pool
        self.cards: dict[str, ModelCard] = {}
        """By name: the model with the smallest length that a replica gives."""
        self.is_known = bool(pool.replicas)
        """Whether the replicas take no other names. A replica whose list is unread, or has a wildcard, may."""
        for replica in pool.replicas:
            cards = lists.get(replica.name, ())
            self.is_known = self.is_known and bool(names_of(cards))
            for card in cards:
                known = self.cards.get(card.id)
                if known is None:
                    self.cards[card.id] = card
                elif card.max_model_len != known.max_model_len or card.parent is not None:
                    length = _least(known.max_model_len, card.max_model_len)
                    self.cards[card.id] = ModelCard(card.id, length, known.parent or card.parent)


class ModelBoard:
    """Models of each replica, from its last answer. The models of a replica that has not answered yet are unknown."""

    def __init__(self, created_unix_s: int) -> None:
        """`created_unix_s`: the field `created` of every model in the API."""
        self._created_unix_s = created_unix_s
        self._cards: dict[str, tuple[ModelCard, ...]] = {}
        self._adapters: set[str] = set()
        """Names that any replica lists as a LoRA adapter."""
        self._pools: dict[str, PoolModels] = {}
        """Joined lists by pool, until a list changes."""
        self._listings: dict[str, list[Listed]] = {}
        """Answers by tier, until a list or the policy changes. The empty name stands for every tier."""
        self._listed_policy: Policy | None = None
        self.on_change: Callable[[str, Rows | None], None] | None = None
        """Called with each replica whose list changes, and the list; None: it is forgotten."""

    def put(self, replica: str, cards: tuple[ModelCard, ...]) -> None:
        """Set the models of a replica. They are kept until its next list, even while it cannot be read."""
        if self._cards.get(replica) != cards:
            self._cards[replica] = cards
            self._changed()
            if self.on_change is not None:
                self.on_change(replica, [(card.id, card.max_model_len, card.parent) for card in cards])

    def forget(self, replica: str) -> None:
        """Forget the models of `replica`, because it was removed or another replica now has its name."""
        if self._cards.pop(replica, None) is not None:
            self._changed()
            if self.on_change is not None:
                self.on_change(replica, None)

    def _changed(self) -> None:
        self._pools.clear()
        self._listings.clear()
        self._adapters = {card.id for cards in self._cards.values() for card in cards if card.parent is not None}

    def _models(self, pool: PoolSpec) -> PoolModels:
        models = self._pools.get(pool.name)
        if models is None or models.pool is not pool:
            models = self._pools[pool.name] = PoolModels(pool, self._cards)
        return models

    def max_model_len(self, pool: PoolSpec, upstream_model: str) -> int | None:
        """The smallest `max_model_len` (tokens) of the replicas that know the model; None if none gives it."""
        card = self._models(pool).cards.get(upstream_model)
        return None if card is None else card.max_model_len

    def known(self, pool: PoolSpec) -> frozenset[str] | None:
        """The models of a pool; None until the lists of all its replicas have been read.

        Until then any model is accepted: a replica whose list is unread may serve models that the others do not.
        """
        models = self._models(pool)
        return frozenset(models.cards) if models.is_known else None

    def takes(self, replica: str, name: str) -> bool:
        """Whether a replica lists this name, or may serve it because its list is unknown."""
        names = names_of(self._cards.get(replica, ()))
        return not names or name in names

    def listing(self, policy: Policy, tier: Tier | None = None) -> list[Listed]:
        """The answer to GET /v1/models: the policy's models and aliases. With a catch-all, also the models that
        replicas list.

        With `tier`, only models that this tier may use. The list is kept until a replica's list or the policy changes,
        and must not be changed.
        """
        if self._listed_policy is not policy:
            self._listed_policy = policy
            self._listings.clear()
        key = "" if tier is None else tier.name
        listed = self._listings.get(key)
        if listed is None:
            listed = self._listings[key] = self._listing(policy, tier)
        return listed

    def _listing(self, policy: Policy, tier: Tier | None) -> list[Listed]:
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
            asked = model.upstream or name
            if all(models.is_known and asked not in models.cards for models in map(self._models, pools)):
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
        return name in self._adapters and any(self._is_adapter(pool, name) for pool in pools)

    def _is_adapter(self, pool: PoolSpec, name: str) -> bool:
        card = self._models(pool).cards.get(name)
        return card is not None and card.parent is not None

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

    def _pool_cards(self, pool: PoolSpec) -> Collection[ModelCard]:
        return self._models(pool).cards.values()


def _pools(policy: Policy, model: Model, tier: Tier | None) -> tuple[PoolSpec, ...]:
    if tier is None:
        return tuple(policy.pools[name] for name in model.pools)
    return policy.route(model, tier)


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
