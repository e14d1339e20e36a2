"""The board merges the model lists of replicas, and lists models by the names that clients use."""

from __future__ import annotations

import time
from math import inf

from gateway.core.policy import Model, Policy, Tier
from gateway.core.pool_spec import PoolSpec, ReplicaSpec
from gateway.fleet.board import ModelBoard
from gateway.fleet.models_json import ModelCard

from .replicas import policy, pool

SHORT = pool("http://10.0.0.1:1", "http://10.0.0.2:1", name="short")
LONG = pool("http://10.0.0.3:1", name="long")
LLAMA = Model("llama", ("short", "long"), aliases=("gpt-4o", "default"), upstream="meta/llama")
ANY = Model("*", ("short", "long"), any_name=True)


def board(**cards: tuple[ModelCard, ...]) -> ModelBoard:
    """A board with reports of the named replicas, with _ for -."""
    made = ModelBoard(created_unix_s=1_700_000_000)
    for name, said in cards.items():
        made.put(name.replace("_", "-"), said)
    return made


def test_board_knows_no_models_before_a_replica_answered() -> None:
    empty = board()
    assert empty.known(SHORT) is None
    assert empty.max_model_len(SHORT, "m") is None


def test_the_models_of_a_pool_are_known_once_the_list_of_each_replica_was_read() -> None:
    made = board(short_1=(ModelCard("m", 8192), ModelCard("adapter")))
    assert made.known(SHORT) is None, "the other one may serve anything"
    made.put("short-0", (ModelCard("m", 8192), ModelCard("another")))
    assert made.known(SHORT) == {"m", "adapter", "another"}
    assert made.known(LONG) is None


def test_context_length_of_a_model_is_the_shortest_of_its_replicas() -> None:
    two = board(short_0=(ModelCard("m", 8192), ModelCard("a", None)), short_1=(ModelCard("a", 1), ModelCard("m", 4096)))
    assert two.max_model_len(SHORT, "m") == 4096
    assert two.max_model_len(SHORT, "other") is None
    assert two.max_model_len(SHORT, "a") == 1


def test_models_of_a_removed_replica_are_forgotten_and_a_new_list_replaces_the_old() -> None:
    one = board(long_0=(ModelCard("m", 8192),))
    one.put("long-0", (ModelCard("n", 1024),))
    assert one.known(LONG) == {"n"}
    one.forget("long-0")
    one.forget("never-seen")
    assert one.known(LONG) is None


def test_models_and_aliases_are_listed_with_the_longest_context_of_their_pools() -> None:
    two = board(short_0=(ModelCard("meta/llama", 16384),), long_0=(ModelCard("meta/llama", 131072),))
    listing = two.listing(policy(SHORT, LONG, models=(LLAMA,)))
    assert listing[0] == {
        "id": "llama",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "tailgate",
        "root": "llama",
        "parent": None,
        "max_model_len": 131072,
    }
    assert [(entry["id"], entry["root"]) for entry in listing] == [
        ("llama", "llama"),
        ("gpt-4o", "llama"),
        ("default", "llama"),
    ]
    assert {entry["max_model_len"] for entry in listing} == {131072}


def test_replica_model_names_are_listed_only_under_a_catch_all() -> None:
    two = board(short_0=(ModelCard("meta/llama", 16384), ModelCard("b")), long_0=(ModelCard("b", 7),))
    plain = policy(SHORT, LONG, models=(LLAMA,))
    assert [entry["id"] for entry in two.listing(plain)] == ["llama", "gpt-4o", "default"]
    catching = policy(SHORT, LONG, models=(LLAMA, ANY))
    assert [entry["id"] for entry in two.listing(catching)] == ["llama", "gpt-4o", "default", "meta/llama", "b"]
    assert two.listing(catching)[-1]["max_model_len"] == 7
    assert two.listing(catching)[-1]["root"] == "b"


def test_model_of_the_policy_takes_precedence_over_a_replicas_of_the_same_name() -> None:
    same = Model("b", ("long",), upstream="c")
    two = board(short_0=(ModelCard("b", 1),), long_0=(ModelCard("c", 2),))
    listing = two.listing(policy(SHORT, LONG, models=(same, ANY)))
    assert [(entry["id"], entry["max_model_len"]) for entry in listing] == [("b", 2), ("c", 2)]


def test_model_listing_of_a_tier_has_only_the_models_of_its_pools() -> None:
    bound = Tier("t", pools=("long",))
    two = board(short_0=(ModelCard("a"), ModelCard("meta/llama", 10)), long_0=(ModelCard("meta/llama", 5),))
    only_short = Model("tiny", ("short",))
    rules = policy(SHORT, LONG, models=(LLAMA, only_short, ANY), tiers=(bound,))
    assert [(e["id"], e["max_model_len"]) for e in two.listing(rules, bound)] == [
        ("llama", 5),
        ("gpt-4o", 5),
        ("default", 5),
        ("meta/llama", 5),
    ]
    assert two.one(rules, "tiny", bound) is None
    assert two.one(rules, "tiny") is not None


def test_model_is_retrieved_by_name_or_alias() -> None:
    two = board(short_0=(ModelCard("meta/llama", 16384),))
    rules = policy(SHORT, LONG, models=(LLAMA,))
    assert two.one(rules, "gpt-4o") == two.listing(rules)[1]
    assert two.one(rules, "meta/llama") is None
    assert two.one(rules, "*") is None


def test_catch_all_accepts_a_name_until_every_pool_is_known_to_lack_it() -> None:
    rules = policy(SHORT, LONG, models=(ANY,))
    made = board(short_0=(ModelCard("a", 9),), short_1=(ModelCard("a", 9),))
    assert made.one(rules, "a") == made.listing(rules)[0]
    assert made.one(rules, "b") is not None
    made.put("long-0", (ModelCard("c"),))
    assert made.one(rules, "b") is None
    assert made.one(rules, "c") is not None
    assert made.one(rules, "*") is None


def test_catch_all_accepts_a_name_while_the_list_of_one_replica_is_unreadable() -> None:
    """The readable list of one replica must not hide what another one may serve."""
    rules = policy(SHORT, models=(Model("*", ("short",), any_name=True),))
    made = board(short_0=(ModelCard("a"),))
    assert made.one(rules, "b") is not None
    assert [entry["id"] for entry in made.listing(rules)] == ["a"], "only what is known is listed"
    made.put("short-1", (ModelCard("b"),))
    assert made.one(rules, "b") is not None
    assert made.one(rules, "c") is None


def test_split_model_is_listed_with_the_shortest_context_of_its_arms() -> None:
    """A session may get either arm, so the shorter context of both is promised."""
    old, new = Model("v1", ("short",)), Model("v2", ("long",))
    shared = Model("chat", ("short", "long"), aliases=("default",), split=(("v1", 95), ("v2", 5)))
    two = board(short_0=(ModelCard("v1", 16384),), long_0=(ModelCard("v2", 8192),))
    rules = policy(SHORT, LONG, models=(old, new, shared))
    assert {model["id"]: model["max_model_len"] for model in two.listing(rules)} == {
        "v1": 16384,
        "v2": 8192,
        "chat": 8192,
        "default": 8192,
    }
    assert two.one(rules, "chat") == two.listing(rules)[2]


def test_usable_models_are_named_once_without_aliases_adapters_and_models_of_other_tiers() -> None:
    cards = (ModelCard("meta/llama"), ModelCard("sql", parent="meta/llama"))
    made = board(short_0=cards, short_1=cards, long_0=(*cards, ModelCard("other")))
    short_only, all_pools = Tier("t", pools=("short",)), Tier("u")
    rules = policy(SHORT, LONG, models=(LLAMA, Model("big", ("long",))), tiers=(short_only, all_pools))
    assert made.usable(rules, short_only) == ["llama"]
    assert made.usable(rules, all_pools) == ["llama", "big"]
    catching = policy(SHORT, LONG, models=(ANY,), tiers=(short_only, all_pools))
    assert made.usable(catching, short_only) == ["meta/llama"]
    assert made.usable(catching, all_pools) == ["meta/llama", "other"]
    assert board().usable(catching, all_pools) == []


def test_listed_model_that_no_request_could_name_is_not_usable() -> None:
    rules = policy(SHORT, models=(Model("*", ("short",), any_name=True),))
    made = board(short_0=(ModelCard("a\nb"), ModelCard("x" * 257), ModelCard("*"), ModelCard("y" * 256)))
    assert made.usable(rules, Tier("t")) == ["y" * 256]


def test_catch_all_with_an_upstream_name_is_one_usable_model() -> None:
    made = board(short_0=(ModelCard("meta/llama"), ModelCard("alias")))
    anything = Model("*", ("short",), upstream="meta/llama", any_name=True)
    tier = Tier("t")
    assert made.usable(policy(SHORT, models=(anything,)), tier) == ["meta/llama"]
    both = policy(SHORT, LONG, models=(anything, LLAMA))
    assert made.usable(both, tier) == ["llama"], "it is the same model"


def many(names: int) -> tuple[ModelBoard, Policy]:
    """A catch-all whose two replicas list `names` models together."""
    board = ModelBoard(7)
    main = PoolSpec("main", (ReplicaSpec("a", "http://a:1"), ReplicaSpec("b", "http://b:1")))
    for half, replica in enumerate("ab"):
        board.put(replica, tuple(ModelCard(f"model-{half}-{number}", 4096) for number in range(names // 2)))
    return board, policy(main, models=(Model("*", ("main",), any_name=True),))


def cpu_s(names: int) -> float:
    """CPU seconds of a listing after a list has changed, and of the look-up of each name in it."""
    least = inf
    for _ in range(3):
        board, rules = many(names)
        began = time.process_time()
        for entry in board.listing(rules):
            assert board.one(rules, entry["id"]) is not None
        least = min(least, time.process_time() - began)
    return least


def test_cost_of_a_listing_and_of_its_names_grows_linearly_with_them() -> None:
    """A quadratic listing of 8 times as many names costs 64 times as much."""
    assert cpu_s(4000) < 24 * cpu_s(500)


def test_listing_is_kept_until_a_list_or_the_policy_changes() -> None:
    board, rules = many(10)
    listed = board.listing(rules)
    board.put("a", tuple(ModelCard(f"model-0-{number}", 4096) for number in range(5)))
    assert board.listing(rules) is listed, "an equal list is no change"
    board.put("a", (ModelCard("new"),))
    assert board.listing(rules)[0]["id"] == "new"
    assert board.listing(many(10)[1]) is not listed


def test_replica_takes_what_it_lists_and_any_name_while_its_list_is_unknown() -> None:
    board, _ = many(2)
    assert (board.takes("a", "model-0-0"), board.takes("a", "model-1-0"), board.takes("c", "x")) == (True, False, True)
    board.put("a", (ModelCard("*"),))
    assert board.takes("a", "x")
