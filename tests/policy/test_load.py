"""The compiled form of a policy file."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest

from gateway.core import policy as rules
from gateway.core import pool_spec
from gateway.core.slo import Objective, Slo
from gateway.policy import PolicyErrors, builtin, load, load_text
from gateway.policy.builtin import written

from .sample import HASH_A, SAMPLE, changed, errors_of

FULL = f"""\
apiVersion: tailgate/v1
models:
  llama-3.3-70b:
    pools: [short, long]
    aliases: [gpt-4o, default]
    upstream: meta/llama
  "*": {{pools: [long]}}
pools:
  short:
    engine: sglang
    replicas: [http://A:8000/, "http://[::1]:8001", {{name: third, url: http://c}}]
    max_prompt_tokens: 16384
    slots: 64
    queue: {{limit: 7, bytes: 2MiB}}
    connect_timeout: 250ms
    timeouts: {{ttft: 1m30s}}
    router: least-requests
    health: {{path: /live, interval: 1s, timeout: 3s, failures: 5, open: 9s, metrics_path: /m, scrape_interval: 4s}}
    api_key: ${{KEY}}
  long:
    replicas: [http://d:80]
    slots: auto
    spill_from: [short]
    reserve: {{premium: 25%}}
tiers:
  premium:
    priority: -1
    weight: 4
    floor: 5%
    pools: [short, long]
    slo: {{ttft: {{p50: 500ms, p999: 2s}}, tpot: {{p90: 80ms, p95: 90ms}}, e2e: {{p99: 30s, up_to_tokens: 1000}}}}
    max_tokens: {{default: 1000, limit: 4000, degrade: true}}
    caps: {{n: 2, best_of: 3, top_logprobs: 0, prompt_logprobs: 1, batch: 4, media: true}}
    stop: ["###"]
    engine_priority: -5
    timeouts: {{queue: 1s, ttft: 10s, idle: none, total: 2h}}
    limits: {{requests: 10/s, tokens: 40k/min, concurrency: 4}}
    admission: {{mode: "off", max_breach_probability: 0.25, exploration: 2%}}
    hedge: {{quantile: 0.9, budget: 1%, holdout: 0}}
    retry: {{budget: 20%}}
  free: {{}}
keys:
  - {{sha256: {HASH_A}, tenant: acme}}
defaults: {{tier: free}}
listen: {{open_on_any_address: true}}
"""


@pytest.fixture
def policy(tmp_path: Path) -> rules.Policy:
    (tmp_path / "p.yaml").write_text(FULL)
    return load(tmp_path / "p.yaml", {"KEY": "s3cret"})


def test_policy_finds_models_by_name_by_alias_and_by_the_catch_all(policy: rules.Policy) -> None:
    llama = rules.Model(
        name="llama-3.3-70b",
        pools=("short", "long"),
        aliases=("gpt-4o", "default"),
        upstream="meta/llama",
    )
    anything = rules.Model(name="*", pools=("long",), upstream="", any_name=True)
    assert policy.models == {"llama-3.3-70b": llama, "gpt-4o": llama, "default": llama, "*": anything}
    assert policy.model("gpt-4o") == llama
    assert policy.model("whatever") == anything


def test_each_data_parallel_rank_of_a_url_is_a_replica() -> None:
    replicas = '[{url: "http://a", dp: 2}, {name: b, url: "http://b", dp: 1}]'
    text = SAMPLE.replace("[http://a:1, http://b:1]", replicas)
    assert load_text(text, "p.yaml").pools["short"].replicas == (
        pool_spec.ReplicaSpec("a:80#0", "http://a:80", 0),
        pool_spec.ReplicaSpec("a:80#1", "http://a:80", 1),
        pool_spec.ReplicaSpec("b", "http://b:80"),
    )


def test_loaded_pools_have_their_replicas_bounds_and_secrets(policy: rules.Policy) -> None:
    assert policy.pools == {
        "short": pool_spec.PoolSpec(
            name="short",
            replicas=(
                pool_spec.ReplicaSpec("a:8000", "http://a:8000"),
                pool_spec.ReplicaSpec("[::1]:8001", "http://[::1]:8001"),
                pool_spec.ReplicaSpec("third", "http://c:80"),
            ),
            engine=pool_spec.EngineKind.SGLANG,
            max_prompt_tokens=16384,
            slots=64,
            queue_limit=7,
            queue_bytes=2 * 1024 * 1024,
            connect_timeout_s=0.25,
            timeouts=pool_spec.Timeouts(math.inf, 90.0, math.inf, math.inf),
            router="least-requests",
            health=pool_spec.Health("/live", 1.0, 3.0, 5, 9.0, "/m", 4.0),
            access=pool_spec.ReplicaAccess("s3cret"),
        ),
        "long": pool_spec.PoolSpec(
            name="long",
            replicas=(pool_spec.ReplicaSpec("d:80", "http://d:80"),),
            slots=None,
            queue_limit=768,
            reserve=(("premium", 0.25),),
            spill_from=("short",),
        ),
    }
    assert "s3cret" not in repr(policy)


def test_a_tier_has_every_field_of_its_policy_file(policy: rules.Policy) -> None:
    assert policy.tiers["premium"] == rules.Tier(
        name="premium",
        priority=-1,
        weight=4.0,
        floor=0.05,
        pools=("short", "long"),
        slo=Slo(
            ttft=(Objective(0.5, 0.5), Objective(0.999, 2.0)),
            tpot=(Objective(0.9, 0.08), Objective(0.95, 0.09)),
            e2e=(Objective(0.99, 30.0),),
            e2e_up_to_tokens=1000,
        ),
        caps=rules.Caps(1000, 4000, True, False, 2, 3, 0, 1, ("###",), 4, -5, True),
        timeouts=pool_spec.Timeouts(1.0, 10.0, math.inf, 7200.0),
        limits=rules.Limits(600.0, 40_000.0, 4),
        admission=rules.AdmissionSpec(rules.AdmissionMode.OFF, 0.25, 0.02),
        hedge=rules.Hedge(0.9, 0.01, 0.0),
        retry=rules.Retry(0.2),
    )


def test_omitted_tier_and_pool_fields_take_the_defaults_of_the_core() -> None:
    text = (
        "apiVersion: tailgate/v1\nmodels: {m: {pools: [p]}}\npools: {p: {replicas: [http://a:1]}}\ntiers: {only: {}}\n"
    )
    policy = load_text(text, "p.yaml")
    assert policy == rules.Policy(
        models={"m": rules.Model("m", ("p",), upstream="m")},
        pools={"p": pool_spec.PoolSpec("p", (pool_spec.ReplicaSpec("a:1", "http://a:1"),))},
        tiers={"only": rules.Tier("only")},
        keys={},
        default_tier="only",
        generation=1,
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


def test_keys_are_found_by_hash_and_have_the_default_tier_unless_given(policy: rules.Policy) -> None:
    digest = bytes.fromhex(HASH_A)
    assert policy.keys == {digest: rules.Key(digest, "acme", "free")}
    assert policy.default_tier == "free"
    assert policy.open_on_any_address


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{}", (0, 32768)),
        ("{limit: 100}", (100, 100)),
        ("{limit: 9000}", (9000, 9000)),
        ("{default: 9000}", (9000, 32768)),
        ("{default: 90000}", (90000, 90000)),
        ("{default: 10}", (10, 32768)),
        ("{default: none, limit: 100}", (0, 100)),
        ("{default: 10, limit: 10}", (10, 10)),
    ],
)
def test_the_default_length_of_an_answer_never_exceeds_its_limit(written: str, expected: tuple[int, int]) -> None:
    policy = load_text(SAMPLE.replace("{default: 10, limit: 20}", written), "p.yaml")
    caps = policy.tiers["free"].caps
    assert (caps.max_tokens_default, caps.max_tokens_limit) == expected


@pytest.mark.parametrize(
    ("written", "environment", "expected"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("${A:-y}", {}, "y"),
        ("${A:-y}", {"A": ""}, "y"),
        ("${A:-y}", {"A": "x"}, "x"),
        ("pre-${A}-${B:-b}", {"A": "x"}, "pre-x-b"),
        ("$${A}", {}, "${A}"),
        ("$A", {"A": "x"}, "$A"),
        ('"${A}"', {"A": "x"}, "x"),
    ],
)
def test_variables_of_a_policy_are_filled_in_from_the_environment(
    written: str, environment: dict[str, str], expected: str
) -> None:
    text = SAMPLE.replace("slots: 8", f"api_key: {written}")
    assert load_text(text, "p.yaml", environment).pools["short"].access.key == expected


def test_value_of_a_variable_is_not_expanded_again() -> None:
    text = SAMPLE.replace("slots: 8", "api_key: ${A}")
    assert load_text(text, "p.yaml", {"A": "${B}"}).pools["short"].access.key == "${B}"


def test_anchors_and_merges_of_yaml_work_in_a_policy() -> None:
    text = SAMPLE.replace("  paid:\n", "  paid:\n    <<: &slow {timeouts: {total: 9m}, priority: 3}\n    priority: 1\n")
    tier = load_text(text, "p.yaml").tiers["paid"]
    assert (tier.timeouts.total_s, tier.priority) == (540.0, 1)


def test_policy_digest_is_the_hash_of_the_file(tmp_path: Path) -> None:
    content = SAMPLE.replace("\n", "\r\n").encode()
    (tmp_path / "p.yaml").write_bytes(content)
    assert load(tmp_path / "p.yaml").digest == hashlib.sha256(content).hexdigest()


def test_unreadable_policy_file_is_a_policy_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyErrors, match=r"none\.yaml: cannot be read: No such file or directory"):
        load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"apiVersion: \xff")
    with pytest.raises(PolicyErrors, match=r"latin\.yaml: is not UTF-8 at byte 12"):
        load(tmp_path / "latin.yaml")


def test_the_builtin_policy_takes_any_model_and_refuses_nothing_for_want_of_slots() -> None:
    policy = builtin(["http://127.0.0.1:8001", "http://127.0.0.1:8002/"])
    model = policy.model("any/model")
    assert model is not None
    assert model.any_name
    (tier,) = policy.tiers.values()
    (pool,) = policy.route(model, tier)
    assert [replica.url for replica in pool.replicas] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    assert pool.slots is None
    assert pool.max_prompt_tokens is None
    assert tier.admission.mode is rules.AdmissionMode.SHADOW
    caps = tier.caps
    assert min(caps.batch, caps.top_logprobs, caps.prompt_logprobs, caps.max_tokens_limit) >= 10**6
    assert (caps.max_tokens_default, caps.media, caps.media_urls, caps.engine_options) == (0, True, True, True)
    assert not policy.keys
    assert not policy.open_on_any_address


def test_the_builtin_policy_is_one_that_could_have_been_written_in_a_file() -> None:
    import json

    urls = ["http://127.0.0.1:8001"]
    from_file = load_text(json.dumps(written(urls)), "p.yaml")
    made = builtin(urls)
    assert (from_file.pools, from_file.tiers, from_file.models) == (made.pools, made.tiers, made.models)


def test_errors_of_the_builtin_policy_name_the_option() -> None:
    with pytest.raises(PolicyErrors) as caught:
        builtin(["http://a:1", "http://user:hunter2@b:1", "http://a:1"])
    first, second = map(str, caught.value.errors)
    assert first.startswith("--replica (number 2): has a user name or password in it")
    assert second.startswith("--replica (number 3): this replica is already listed")
    assert "hunter2" not in str(caught.value)


def test_the_builtin_policy_without_a_replica_is_an_error() -> None:
    with pytest.raises(PolicyErrors, match="--replica: a pool needs at least one replica"):
        builtin([])


def test_policy_error_repeated_by_a_yaml_alias_is_reported_once() -> None:
    assert errors_of(SAMPLE) == []
    broken = SAMPLE.replace("[short, long]", "&a [shrt, long]").replace("pools: [long]\npools", "pools: *a\npools")
    assert [error.split(": ")[1] for error in errors_of(broken)] == ["models.llama.pools[0]", "models.mistral.pools[0]"]


@pytest.mark.parametrize(("time", "longest_s"), [("30s", 300.0), ("10m", 600.0)])
def test_longest_ejection_is_five_minutes_or_the_first_one(time: str, longest_s: float) -> None:
    text = changed("    slots: 8\n", f"    slots: 8\n    health: {{ejection: {{time: {time}}}}}\n")
    ejection = load_text(text, "p.yaml").pools["short"].health.ejection
    assert ejection is not None
    assert ejection.max_time_s == longest_s


@pytest.mark.parametrize(
    ("slo", "written", "breach"),
    [
        ("ttft: {p99: 2s}, e2e: {p99: 60s}", "", 0.5),
        ("tpot: {p99: 60ms}", "", 0.5),
        ("e2e: {p99: 60s}", "", 0.2),
        ("e2e: {p99: 60s}", "max_breach_probability: 50%", 0.5),
    ],
)
def test_threshold_that_is_not_written_is_lower_without_a_ttft_objective(slo: str, written: str, breach: float) -> None:
    text = (
        "apiVersion: tailgate/v1\nmodels: {m: {pools: [p]}}\npools: {p: {replicas: [http://a:1]}}\n"
        f"tiers: {{only: {{slo: {{{slo}}}, admission: {{{written}}}}}}}\n"
    )
    assert load_text(text, "p.yaml").tiers["only"].admission.max_breach_probability == breach


@pytest.mark.parametrize(
    ("queue", "slo", "limit"),
    [
        ("", "", 256),
        ("", "ttft: {p99: 2s}", 256),
        ("", "e2e: {p99: 60s}", 1536),
        ("", "tpot: {p99: 60ms}", 1536),
        ("limit: 128", "e2e: {p99: 60s}", 128),
    ],
)
def test_queue_limit_that_is_not_written_grows_with_the_longest_bound(queue: str, slo: str, limit: int) -> None:
    text = (
        "apiVersion: tailgate/v1\nmodels: {m: {pools: [p]}}\n"
        f"pools: {{p: {{replicas: [http://a:1], queue: {{{queue}}}}}}}\ntiers: {{only: {{slo: {{{slo}}}}}}}\n"
    )
    assert load_text(text, "p.yaml").pools["p"].queue_limit == limit
