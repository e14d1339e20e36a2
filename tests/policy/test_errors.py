"""Every kind of error: its line, its field, and the proposed correction."""

from __future__ import annotations

import pytest

from gateway.policy import PolicyErrors, load_text

from .sample import HASH_A, HASH_B, SAMPLE, changed, errors_of

CASES = {
    "unknown field at the root": (
        "kind: Policy",
        "kidn: Policy",
        "p.yaml:2: kidn: unknown field: did you mean kind?",
    ),
    "unknown field in a pool": (
        "    slots: 8",
        "    slot: 8",
        "p.yaml:13: pools.short.slot: unknown field: did you mean slots?",
    ),
    "unknown field without a near one": (
        "    pools: [long]\nkeys",
        "    limits: {zzzz: 1}\nkeys",
        "p.yaml:23: tiers.paid.limits.zzzz: unknown field: there is concurrency, count, requests, tokens",
    ),
    "unknown field of a replica": (
        "{name: big, url:",
        "{nme: big, url:",
        "p.yaml:17: pools.long.replicas[0].nme: unknown field: did you mean name?",
    ),
    "unknown percentile": (
        "p50: 1s",
        "p98: 1s",
        "p.yaml:20: tiers.free.slo.ttft.p98: unknown field: did you mean p99?",
    ),
    "version missing": (
        "apiVersion: tailgate/v1\n",
        "",
        "p.yaml:1: apiVersion: is missing: write apiVersion: tailgate/v1",
    ),
    "version unknown": (
        "tailgate/v1",
        "tailgate/v2",
        "p.yaml:1: apiVersion: tailgate/v2 is not supported: write apiVersion: tailgate/v1",
    ),
    "section missing": (
        "models:\n  llama:\n    pools: [short, long]\n    aliases: [gpt]\n  mistral:\n    pools: [long]\n",
        "",
        "p.yaml:1: models: is missing: names that clients may ask for. The name * takes every name that is not listed",
    ),
    "split beside pools": (
        "    pools: [short, long]",
        "    pools: [short, long]\n    split: {mistral: 1}",
        "p.yaml:5: models.llama.pools: must not be beside a split: write it at the models that the split names",
    ),
    "upstream beside a split": (
        "    pools: [short, long]",
        "    split: {mistral: 1}\n    upstream: x",
        "p.yaml:6: models.llama.upstream: must not be beside a split: write it at the models that the split names",
    ),
    "unknown arm": (
        "    pools: [short, long]",
        "    split: {mistrall: 1}",
        "p.yaml:5: models.llama.split.mistrall: mistrall is not a model: did you mean mistral?",
    ),
    "alias as an arm": (
        "  mistral:\n    pools: [long]",
        "  mistral: {split: {gpt: 1}}",
        "p.yaml:7: models.mistral.split.gpt: gpt is an alias: write the name of its model, llama",
    ),
    "split of itself": (
        "  mistral:\n    pools: [long]",
        "  mistral: {split: {mistral: 1}}",
        "p.yaml:7: models.mistral.split.mistral: mistral serves nothing itself: name models that have pools",
    ),
    "split of the catch-all": (
        "  mistral:\n    pools: [long]",
        "  mistral: {split: {llama: 1, '*': 1}}\n  '*': {pools: [long]}",
        "p.yaml:7: models.mistral.split.*: * serves nothing itself: name models that have pools",
    ),
    "catch-all that is split": (
        "  mistral:\n    pools: [long]",
        "  '*': {split: {llama: 1}}",
        "p.yaml:7: models.*.split: the model * cannot be split: split a model with a name",
    ),
    "split without a weight": (
        "  mistral:\n    pools: [long]",
        "  mistral: {split: {llama: 0}}",
        "p.yaml:7: models.mistral.split: every weight is 0: give at least one model a weight, such as 95",
    ),
    "mirror to an unknown pool": (
        "    aliases: [gpt]",
        "    mirror: {to: shrot, share: 2%}",
        "p.yaml:6: models.llama.mirror.to: shrot is not a pool: did you mean short?",
    ),
    "mirror to a pool that serves": (
        "    aliases: [gpt]",
        "    mirror: {to: short, share: 2%}",
        "p.yaml:6: models.llama.mirror.to: short serves a model on line 5: name a pool that no model lists",
    ),
    "mirror without a pool": (
        "    aliases: [gpt]",
        "    mirror: {share: 2%}",
        "p.yaml:6: models.llama.mirror.to: is missing: the shadow pool; no model may list it",
    ),
    "unknown fallback": (
        "    slo: {ttft:",
        "    fallback: lama\n    slo: {ttft:",
        "p.yaml:20: tiers.free.fallback: lama is not a model: did you mean llama?",
    ),
    "alias as a fallback": (
        "    slo: {ttft:",
        "    fallback: gpt\n    slo: {ttft:",
        "p.yaml:20: tiers.free.fallback: gpt is an alias: write the name of its model, llama",
    ),
    "catch-all as a fallback": (
        "    slo: {ttft:",
        "    fallback: '*'\n    slo: {ttft:",
        "p.yaml:20: tiers.free.fallback: * serves nothing itself: name a model that has pools",
    ),
    "fallback that the tier may not use": (
        "  paid:\n    pools: [long]",
        "  paid:\n    fallback: mistral\n    pools: [short]",
        "p.yaml:23: tiers.paid.fallback: the tier is bound to other pools than those of mistral: "
        "add one of them to its pools",
    ),
    "share for a weight": (
        "  mistral:\n    pools: [long]",
        "  mistral: {split: {llama: 95%}}",
        "p.yaml:7: models.mistral.split.llama: 95% is not a whole number",
    ),
    "list for a split": (
        "  mistral:\n    pools: [long]",
        "  mistral: {split: [llama]}",
        "p.yaml:7: models.mistral.split: is a list, must be a mapping",
    ),
    "required field missing": (
        "    pools: [short, long]\n",
        "",
        "p.yaml:4: models.llama.pools: is missing: pools that serve this model, in the order they are tried",
    ),
    "tenant missing": (
        f"{HASH_B}, tenant: acme",
        f"{HASH_B}",
        "p.yaml:26: keys[1].tenant: is missing: who holds the key: limits are counted per tenant",
    ),
    "empty value": (
        "    slots: 8",
        "    slots: 8\n    queue:",
        "p.yaml:14: pools.short.queue: is empty: give it a value or leave the field out",
    ),
    "empty list": (
        "    pools: [short, long]",
        "    pools: []",
        "p.yaml:5: models.llama.pools: is empty: pools that serve this model, in the order they are tried",
    ),
    "list for a mapping": (
        "slo: {ttft: {p50: 1s, p99: 2s}}",
        "slo: [1s]",
        "p.yaml:20: tiers.free.slo: is a list, must be a mapping",
    ),
    "number for a section": (
        "max_tokens: {default: 10, limit: 20}",
        "max_tokens: 5",
        "p.yaml:21: tiers.free.max_tokens: is a single value, must be a mapping, "
        "such as max_tokens: {default: 5, limit: 5}",
    ),
    "number for a section where one field takes it": (
        "    slots: 8",
        "    queue: 5",
        "p.yaml:13: pools.short.queue: is a single value, must be a mapping, such as queue: {limit: 5}",
    ),
    "file name for a section that takes one of several sources": (
        "    slots: 8",
        "    discover: replicas.json",
        "p.yaml:13: pools.short.discover: is a text, must be a mapping, such as discover: {file: replicas.json}",
    ),
    "hold without a unit": (
        "    slots: 8",
        "    hold: 60",
        "p.yaml:13: pools.short.hold.time: 60 has no unit: write 60s for seconds or 60ms for milliseconds",
    ),
    "duration for a section with many fields": (
        "slo: {ttft: {p50: 1s, p99: 2s}}",
        "slo: {ttft: 500ms}",
        "p.yaml:20: tiers.free.slo.ttft: is a text, must be a mapping, such as ttft: {p50: 500ms, p90: 500ms, ...}",
    ),
    "text for a section that needs a list": (
        "  mistral:\n    pools: [long]",
        "  mistral: long",
        "p.yaml:7: models.mistral: is a text, must be a mapping, such as mistral: {pools: [long]}",
    ),
    "value for a section that could hold a secret": (
        f"  - {{sha256: {HASH_B}, tenant: acme}}",
        "  - tg-a-whole-key",
        "p.yaml:26: keys[1]: is a text, must be a mapping, such as {sha256: ..., tenant: ...}",
    ),
    "value for a mapping of names": (
        "    slots: 8",
        "    reserve: 50%",
        "p.yaml:13: pools.short.reserve: is a text, must be a mapping, such as reserve: {NAME: ...}",
    ),
    "text for a list": (
        "    pools: [short, long]",
        "    pools: short",
        "p.yaml:5: models.llama.pools: is a text, must be a list",
    ),
    "mapping for a value": (
        "engine: vllm",
        "engine: {a: 1}",
        "p.yaml:11: pools.short.engine: is a mapping, must be a single value",
    ),
    "duplicate key": (
        "    slots: 8\n",
        "    slots: 8\n    engine: sglang\n",
        "p.yaml:14: pools.short.engine: is written twice, first on line 11: keep one of them",
    ),
    "duplicate section": (
        "defaults:",
        "pools: {}\ndefaults:",
        "p.yaml:27: pools: is written twice, first on line 9: keep one of them",
    ),
    "unknown engine": (
        "engine: vllm",
        "engine: vlm",
        "p.yaml:11: pools.short.engine: vlm is unknown: did you mean vllm? Known: vllm, sglang, tgi, openai",
    ),
    "unknown engine, like none": (
        "engine: vllm",
        "engine: xyzzy",
        "p.yaml:11: pools.short.engine: xyzzy is unknown: known: vllm, sglang, tgi, openai",
    ),
    "unknown router": (
        "round-robin",
        "round-robbin",
        "p.yaml:14: pools.short.router: round-robbin is unknown: did you mean round-robin? "
        "Known: least-prefill, least-requests, round-robin",
    ),
    "unknown affinity": (
        "    router: round-robin",
        "    router: round-robin\n    affinity: prefixes",
        "p.yaml:15: pools.short.affinity: prefixes is unknown: did you mean prefix? Known: prefix, none",
    ),
    "affinity of a session that is no yes or no": (
        "    router: round-robin",
        "    router: round-robin\n    affinity: {strict: maybe}",
        "p.yaml:15: pools.short.affinity.strict: maybe is neither true nor false",
    ),
    "unknown session key": (
        "    router: round-robin",
        "    router: round-robin\n    affinity: {keys: [users]}",
        "p.yaml:15: pools.short.affinity.keys[0]: users is unknown: did you mean user? "
        "Known: header, prompt_cache_key, metadata.user_id, user, first-message",
    ),
    "session key named twice": (
        "    router: round-robin",
        "    router: round-robin\n    affinity: {keys: [user, header, user]}",
        "p.yaml:15: pools.short.affinity.keys: has user twice: name each key once",
    ),
    "header of sessions with a space": (
        "    router: round-robin",
        "    router: round-robin\n    affinity: {header: session id}",
        "p.yaml:15: pools.short.affinity.header: 'session id' is not the name of a header: use letters, digits and "
        "dashes, such as x-session-id",
    ),
    "header of sessions that holds a key": (
        "    router: round-robin",
        "    router: round-robin\n    affinity: {header: Authorization}",
        "p.yaml:15: pools.short.affinity.header: Authorization cannot name a session: it holds a secret; use a "
        "separate header",
    ),
    "header of sessions that is new in each request": (
        "    router: round-robin",
        "    router: round-robin\n    affinity: {header: X-Request-ID}",
        "p.yaml:15: pools.short.affinity.header: X-Request-ID cannot name a session: it differs in each request",
    ),
    "unknown admission mode": (
        "    pools: [long]\nkeys",
        "    admission: {mode: shadows}\nkeys",
        "p.yaml:23: tiers.paid.admission.mode: shadows is unknown: did you mean shadow? Known: enforce, shadow, off",
    ),
    "no exploration": (
        "    pools: [long]\nkeys",
        "    admission: {exploration: 0%}\nkeys",
        "p.yaml:23: tiers.paid.admission.exploration: 0% lets nothing show that a forecast which sheds the whole tier "
        "is wrong: write a share above 0%, such as 1%",
    ),
    "unknown pool of a model": (
        "    pools: [short, long]",
        "    pools:\n      - short\n      - lnog",
        "p.yaml:7: models.llama.pools[1]: lnog is not a pool: did you mean long?",
    ),
    "unknown pool of a tier": (
        "    pools: [long]\nkeys",
        "    pools: [long, other]\nkeys",
        "p.yaml:23: tiers.paid.pools[1]: other is not a pool: there is long, short",
    ),
    "unknown pool to spill from": (
        "    slots: 8",
        "    spill_from: [shrot]",
        "p.yaml:13: pools.short.spill_from[0]: shrot is not a pool: did you mean short?",
    ),
    "unknown tier of a key": (
        "tier: paid}",
        "tier: pad}",
        "p.yaml:25: keys[0].tier: pad is not a tier: did you mean paid?",
    ),
    "unknown default tier": (
        "  tier: free",
        "  tier: fre",
        "p.yaml:28: defaults.tier: fre is not a tier: did you mean free?",
    ),
    "unknown tier of a reserve": (
        "    slots: 8",
        "    reserve:\n      pad: 10%",
        "p.yaml:14: pools.short.reserve.pad: pad is not a tier: did you mean paid?",
    ),
    "no default tier among several": (
        "defaults:\n  tier: free\n",
        "",
        "p.yaml:1: defaults.tier: is missing: say which tier is the default, one of free, paid",
    ),
    "a pool named twice": (
        "    pools: [short, long]",
        "    pools: [short, long, short]",
        "p.yaml:5: models.llama.pools[2]: short is named twice: keep one of them",
    ),
    "a pool that spills into itself": (
        "    slots: 8",
        "    spill_from: [short]",
        "p.yaml:13: pools.short.spill_from[0]: a pool cannot take what spills from itself: name other pools",
    ),
    "alias that is a model": (
        "[gpt]",
        "[gpt, mistral]",
        "p.yaml:6: models.llama.aliases[1]: mistral is also the name of a model: remove one of the two",
    ),
    "alias of two models": (
        "  mistral:\n    pools: [long]",
        "  mistral:\n    aliases: [gpt]\n    pools: [long]",
        "p.yaml:8: models.mistral.aliases[0]: gpt is already an alias on line 6: an alias means one model",
    ),
    "alias *": (
        "[gpt]",
        '["*"]',
        "p.yaml:6: models.llama.aliases[0]: * cannot be an alias: make it a model of its own",
    ),
    "aliases of *": (
        "  llama:",
        '  "*":',
        "p.yaml:6: models.*.aliases[0]: the model * takes every name already: remove its aliases",
    ),
    "model name with a space": (
        "  llama:",
        "  my llama:",
        "p.yaml:4: models.'my llama': 'my llama' is not a model name: it has no spaces and at most 200 characters",
    ),
    "tier name with a slash": (
        "  paid:\n",
        "  paid: {}\n  a/b:\n",
        "p.yaml:23: tiers.a/b: a/b is not a name: use letters, digits, dot, dash and underscore, at most 63",
    ),
    "duplicate replica": (
        '{name: big, url: "http://c:1"}',
        '{name: big, url: "http://A:1/"}',
        "p.yaml:17: pools.long.replicas[0].url: this replica is already listed on line 12: "
        "a replica is in one pool, once",
    ),
    "ranks that are none": (
        '{name: big, url: "http://c:1"}',
        '{name: big, url: "http://c:1", dp: 0}',
        "p.yaml:17: pools.long.replicas[0].dp: 0 is too small: the minimum is 1",
    ),
    "more ranks than a page of metrics can have": (
        '{name: big, url: "http://c:1"}',
        '{name: big, url: "http://c:1", dp: 65}',
        "p.yaml:17: pools.long.replicas[0].dp: 65 is too large: the maximum is 64",
    ),
    "ranks of another engine": (
        '      - {name: big, url: "http://c:1"}',
        '      - {name: big, url: "http://c:1", dp: 8}\n    engine: sglang',
        "p.yaml:17: pools.long.replicas[0].dp: is for vllm, the engine here is sglang: "
        "list each rank by a URL of its own",
    ),
    "duplicate replica name": (
        '- {name: big, url: "http://c:1"}',
        '- {name: big, url: "http://c:1"}\n      - {name: big, url: "http://d:1"}',
        "p.yaml:18: pools.long.replicas[1].name: big is already the name of the replica on line 17",
    ),
    "no replica": (
        "    replicas: [http://a:1, http://b:1]\n",
        "",
        "p.yaml:10: pools.short.replicas: a pool needs at least one replica, such as http://10.0.0.1:8000, "
        "or a discover section",
    ),
    "replica with a path": (
        "http://b:1]",
        "http://b:1/v1]",
        "p.yaml:12: pools.short.replicas[1]: has /v1 in its path, which the gateway adds itself: "
        "write http://host:port, with the path before /v1",
    ),
    "replica with a password": (
        "http://b:1]",
        "http://u:hunter2@b:1]",
        "p.yaml:12: pools.short.replicas[1]: has a user name or password in it: write http://host:port, "
        "and put a key into the pool's api_key",
    ),
    "replica with a query": (
        "http://b:1]",
        "http://b:1/?x]",
        "p.yaml:12: pools.short.replicas[1]: has more than host, port and path: write http://host:port",
    ),
    "token twice": (
        "slots: 8",
        "api_key: abc\n    api_key_file: token",
        "p.yaml:14: pools.short.api_key_file: is given beside api_key: keep one of them",
    ),
    "key without a certificate": (
        "http://b:1]",
        "https://b:1]\n    tls: {key_file: k.pem}",
        "p.yaml:13: pools.short.tls.key_file: is given without its certificate: write cert_file",
    ),
    "tls without https": (
        "slots: 8",
        "tls: {ca_file: ca.pem}",
        "p.yaml:13: pools.short.tls: has no effect: no replica of this pool has an https URL",
    ),
    "host header with a scheme": (
        "slots: 8",
        "host: http://llama",
        "p.yaml:13: pools.short.host: http://llama is not a Host header: write host or host:port, without a scheme",
    ),
    "discovery without a source": (
        "slots: 8",
        "discover: {hold_down: 5s}",
        "p.yaml:13: pools.short.discover: has no source: write file or dns or kubernetes in it",
    ),
    "discovered path with /v1": (
        "slots: 8",
        "discover: {file: f.json, path: /v1}",
        "p.yaml:13: pools.short.discover.path: /v1 is not a path before /v1: it begins with /, such as /llama",
    ),
    "replica without a scheme": (
        "http://b:1]",
        "b.example]",
        "p.yaml:12: pools.short.replicas[1]: is not a URL of a replica: write http://host:port",
    ),
    "replica with an address that is none": (
        "http://b:1]",
        "http://10.0.0.256:8000]",
        "p.yaml:12: pools.short.replicas[1]: is not an IPv4 address (four numbers up to 255 without leading "
        "zeros): write http://host:port",
    ),
    "replica with an empty part in its name": (
        "http://b:1]",
        "http://b..svc:8000]",
        "p.yaml:12: pools.short.replicas[1]: has a host name with a part that is empty or longer than 63 characters: "
        "write http://host:port",
    ),
    "replica with a long part in its name": (
        "http://b:1]",
        f"http://{'b' * 64}.svc:8000]",
        "p.yaml:12: pools.short.replicas[1]: has a host name with a part that is empty or longer than 63 characters: "
        "write http://host:port",
    ),
    "replica with a bad port": (
        "http://b:1]",
        "http://b:99999]",
        "p.yaml:12: pools.short.replicas[1]: is not a URL with a valid host and port: write http://host:port",
    ),
    "replica with port 0": (
        "http://b:1]",
        "http://b:0]",
        "p.yaml:12: pools.short.replicas[1]: has port 0: write http://host:port",
    ),
    "replica that is a number": (
        "http://b:1]",
        "8000]",
        "p.yaml:12: pools.short.replicas[1]: is a single value, must be a mapping, such as {url: ...}",
    ),
    "reserves over 100%": (
        '- {name: big, url: "http://c:1"}',
        '- {name: big, url: "http://c:1"}\n    reserve: {free: 60%, paid: 0.5}',
        "p.yaml:18: pools.long.reserve: the shares add up to 110%: at most 100%",
    ),
    "reserve for a tier bound elsewhere": (
        "    slots: 8",
        "    reserve: {paid: 10%}",
        "p.yaml:13: pools.short.reserve.paid: the tier paid is bound to other pools: add short to its pools",
    ),
    "floors over 100%": (
        "    pools: [long]\nkeys",
        "    floor: 60%\n  more: {floor: 50%}\nkeys",
        "p.yaml:24: tiers.more.floor: the floors of all tiers add up to 110%: at most 100%",
    ),
    "tier bound to pools that serve nothing": (
        "    pools: [short, long]\n    aliases: [gpt]\n  mistral:\n    pools: [long]",
        "    pools: [short]\n    aliases: [gpt]",
        "p.yaml:21: tiers.paid.pools: no model is served by these pools: add one that a model lists",
    ),
    "thresholds that decrease": (
        "{p50: 1s, p99: 2s}",
        "{p50: 1s, p99: 900ms}",
        "p.yaml:20: tiers.free.slo.ttft.p99: 900ms is less than p50 (1s): "
        "a higher percentile needs a threshold at least as long",
    ),
    "objective without a percentile": (
        "{ttft: {p50: 1s, p99: 2s}}",
        "{e2e: {up_to_tokens: 100}}",
        "p.yaml:20: tiers.free.slo.e2e: has no percentile: write at least one, such as p99: 2s",
    ),
    "default answer over the limit": (
        "{default: 10, limit: 20}",
        "{default: 30, limit: 20}",
        "p.yaml:21: tiers.free.max_tokens.default: 30 is more than the limit (20): lower it, or raise the limit",
    ),
    "hash that is none": (
        HASH_A,
        "tg-this-is-the-key-itself",
        "p.yaml:25: keys[0].sha256: is not a SHA-256: it is 64 hexadecimal digits, as `tailgate key new` prints them",
    ),
    "key listed twice": (
        HASH_B,
        HASH_A.upper(),
        "p.yaml:26: keys[1].sha256: this key is already listed on line 25: a key has one tenant and one tier",
    ),
    "duration without a unit": (
        "    slots: 8",
        "    connect_timeout: 2",
        "p.yaml:13: pools.short.connect_timeout: 2 has no unit: write 2s for seconds or 2ms for milliseconds",
    ),
    "duration that is none": (
        "    slots: 8",
        "    timeouts: {ttft: soon}",
        "p.yaml:13: pools.short.timeouts.ttft: soon is not a duration: "
        "write a number with ms, s, m or h, such as 250ms, 2s or 1m30s",
    ),
    "switch where a time is wanted": (
        "    slots: 8",
        "    hold: true",
        "p.yaml:13: pools.short.hold.time: true is not a duration: "
        "write a number with ms, s, m or h, such as 250ms, 2s or 1m30s",
    ),
    "duration of nothing": (
        "    slots: 8",
        "    health: {interval: 0s}",
        "p.yaml:13: pools.short.health.interval: 0s is too short: write a duration longer than 0s, such as 250ms",
    ),
    "rate without a unit": (
        "    pools: [long]\nkeys",
        "    limits: {requests: 60}\nkeys",
        "p.yaml:23: tiers.paid.limits.requests: 60 has no unit: write 60/min or 60/s",
    ),
    "rate that is none": (
        "    pools: [long]\nkeys",
        "    limits: {tokens: 40k per min}\nkeys",
        "p.yaml:23: tiers.paid.limits.tokens: '40k per min' is not a rate: "
        "write a count per s, min or h, such as 60/min or 40k/min, or a quota such as 10M/day or 200M/month",
    ),
    "share without its %": (
        "    slots: 8",
        "    reserve: {free: 25}",
        "p.yaml:13: pools.short.reserve.free: 25 is not a share: write 25%, or a number from 0 to 1",
    ),
    "share over 100%": (
        "    slots: 8",
        "    reserve: {free: 101%}",
        "p.yaml:13: pools.short.reserve.free: 101% is not a share: it lies between 0% and 100%, such as 25% (or 0.25)",
    ),
    "share that is none": (
        "    slots: 8",
        "    reserve: {free: some}",
        "p.yaml:13: pools.short.reserve.free: some is not a share: "
        "write a percentage such as 25%, or a number from 0 to 1",
    ),
    "size without a unit": (
        "    slots: 8",
        "    queue: {bytes: 64}",
        "p.yaml:13: pools.short.queue.bytes: 64 has no unit: write 64B, or use KiB, MiB, GiB",
    ),
    "size that is none": (
        "    slots: 8",
        "    queue: {bytes: big}",
        "p.yaml:13: pools.short.queue.bytes: big is not a size: write a number with B, KiB, MiB or GiB, such as 64MiB",
    ),
    "slots of none": (
        "    slots: 8",
        "    slots: 0",
        "p.yaml:13: pools.short.slots: 0 is not a number of slots: "
        "write a whole number from 1, auto, or {max: 8, strict: true}",
    ),
    "number too small": (
        "    slots: 8",
        "    queue: {limit: -1}",
        "p.yaml:13: pools.short.queue.limit: -1 is too small: the minimum is 0",
    ),
    "number too large": (
        "    pools: [long]\nkeys",
        "    priority: 5000\nkeys",
        "p.yaml:23: tiers.paid.priority: 5000 is too large: the maximum is 1000",
    ),
    "fraction for a whole number": (
        "limit: 20}",
        "limit: 20.5}",
        "p.yaml:21: tiers.free.max_tokens.limit: 20.5 is not a whole number",
    ),
    "text for a number": (
        "limit: 20}",
        'limit: "20"}',
        "p.yaml:21: tiers.free.max_tokens.limit: '20' is not a whole number",
    ),
    "text for a number or none": (
        "default: 10,",
        'default: "10",',
        "p.yaml:21: tiers.free.max_tokens.default: '10' is not a number of tokens: "
        "write a whole number from 1, or none",
    ),
    "weight of nothing": (
        "    pools: [long]\nkeys",
        "    weight: 0\nkeys",
        "p.yaml:23: tiers.paid.weight: 0 is too small: it must be more than 0",
    ),
    "text for true or false": (
        "defaults:",
        "listen: {open_on_any_address: yes}\ndefaults:",
        "p.yaml:27: listen.open_on_any_address: yes is neither true nor false",
    ),
    "quoted true": (
        "defaults:",
        'listen: {open_on_any_address: "true"}\ndefaults:',
        "p.yaml:27: listen.open_on_any_address: 'true' is neither true nor false",
    ),
    "host name with a port": (
        "defaults:",
        "listen: {names: [gpu-box:8080]}\ndefaults:",
        "p.yaml:27: listen.names[0]: gpu-box:8080 is not a host name: write it as in a URL, without scheme and port",
    ),
    "origin with a path": (
        "defaults:",
        "listen: {origins: [https://chat.example/]}\ndefaults:",
        "p.yaml:27: listen.origins[0]: https://chat.example/ is not an origin: write scheme://host or "
        "scheme://host:port, and nothing behind it; scheme://host:* is every port, app:// every page of a scheme other "
        "than http",
    ),
    "origin of no page": (
        "defaults:",
        "listen: {origins: ['null']}\ndefaults:",
        "p.yaml:27: listen.origins[0]: null is not an origin: write scheme://host or "
        "scheme://host:port, and nothing behind it; scheme://host:* is every port, app:// every page of a scheme other "
        "than http",
    ),
    "body limit without a unit": (
        "defaults:",
        "listen: {max_body: 64}\ndefaults:",
        "p.yaml:27: listen.max_body: 64 has no unit: write 64B, or use KiB, MiB, GiB",
    ),
    "body limit below any request": (
        "defaults:",
        "listen: {max_body: 512B}\ndefaults:",
        "p.yaml:27: listen.max_body: 512B is too small for any request: write at least 1KiB, such as 64MiB",
    ),
    "number for a text": (
        "    aliases: [gpt]",
        "    upstream: 7",
        "p.yaml:6: models.llama.upstream: 7 is not a text",
    ),
    "empty stop sequence": (
        "    pools: [long]\nkeys",
        '    stop: [""]\nkeys',
        "p.yaml:23: tiers.paid.stop[0]: is empty: write at least one character",
    ),
    "path that is none": (
        "    slots: 8",
        "    health: {path: health}",
        "p.yaml:13: pools.short.health.path: health is not a path: it begins with / and has no spaces, such as /health",
    ),
    "upstream key with a newline": (
        "    slots: 8",
        '    api_key: "a\\nb"',
        "p.yaml:13: pools.short.api_key: is not usable as a key: "
        "it is a text of printable ASCII without spaces, such as ${NAME}",
    ),
    "cache isolation without a secret": (
        "    slots: 8",
        "    cache_isolation: tenant",
        "p.yaml:13: pools.short.cache_isolation: tenant needs a secret for the salts: "
        "write cache_key: ${CACHE_KEY} in this pool",
    ),
    "cache isolation with a short secret": (
        "    slots: 8",
        "    cache_isolation: tenant\n    cache_key: abc",
        "p.yaml:14: pools.short.cache_key: is too short for a secret: give at least 16 characters",
    ),
    "secret of a cache without isolation": (
        "    slots: 8",
        "    cache_key: 0123456789abcdef",
        "p.yaml:13: pools.short.cache_key: is not used: write cache_isolation: tenant with it, or leave it out",
    ),
    "cache isolation by an engine that takes no salt": (
        "    engine: vllm\n    replicas: [http://a:1, http://b:1]",
        "    engine: tgi\n    cache_isolation: tenant\n    cache_key: 0123456789abcdef\n"
        "    replicas: [http://a:1, http://b:1]",
        "p.yaml:12: pools.short.cache_isolation: is for vllm, the engine here is tgi: give each tenant a pool instead",
    ),
    "unset variable": (
        "    slots: 8",
        "    api_key: ${VLLM_KEY}",
        "p.yaml:13: pools.short.api_key: the environment variable VLLM_KEY is not set: "
        "set it, or write ${VLLM_KEY:-default}",
    ),
    "broken variable": (
        "    slots: 8",
        "    api_key: ${VLLM-KEY}",
        "p.yaml:13: pools.short.api_key: ${ starts a variable: "
        "write ${NAME} or ${NAME:-default}, or $${ for the characters",
    ),
    "tag": (
        "engine: vllm",
        "engine: !mine vllm",
        "p.yaml:11: pools.short.engine: the tag !mine is not supported: write a plain value",
    ),
    "tag that does not fit": (
        "    slots: 8",
        "    slots: !!int many",
        "p.yaml:13: pools.short.slots: is not a valid int",
    ),
    "key that is a list": (
        "    slots: 8",
        "    [slots]: 8",
        "p.yaml:13: pools.short: a key must be a plain word",
    ),
    "alias of itself": (
        "    slots: 8",
        "    queue: &q {limit: *q}",
        "p.yaml:13: pools.short.queue.limit: contains itself through an alias",
    ),
    "merge of itself": (
        "    slots: 8",
        "    queue: &q {<<: *q}",
        "p.yaml:13: pools.short.queue: merges itself through an alias",
    ),
    "merge of a value": (
        "    slots: 8",
        "    queue: {<<: 8}",
        "p.yaml:13: pools.short.queue: << merges mappings only, such as <<: *name",
    ),
    "bad YAML": (
        "    slots: 8",
        "    slots: [8",
        "p.yaml:14: not valid YAML: expected ',' or ']', but got ':'",
    ),
    "unknown anchor": (
        "    slots: 8",
        "    slots: *eight",
        "p.yaml:13: not valid YAML: found undefined alias 'eight'",
    ),
    "two documents": (
        "defaults:",
        "---\ndefaults:",
        "p.yaml:27: not valid YAML: but found another document",
    ),
}


@pytest.mark.parametrize(("old", "new", "expected"), CASES.values(), ids=CASES)
def test_each_kind_of_policy_error_names_line_field_and_remedy(old: str, new: str, expected: str) -> None:
    assert errors_of(changed(old, new)) == [expected]


def test_sample_policy_is_valid() -> None:
    assert errors_of(SAMPLE) == []


def test_all_policy_errors_are_reported_together_in_file_order() -> None:
    text = SAMPLE
    for old, new in (
        ("kind: Policy", "knid: Policy"),
        ("[short, long]", "[short, lnog]"),
        ("slots: 8", "slots: none\n    slotz: 8"),
        ("p99: 2s", "p99: 2"),
        (HASH_B, HASH_A),
        ("tier: free", "tier: fre"),
    ):
        text = text.replace(old, new)
    assert [error.split(": ")[:2] for error in errors_of(text)] == [
        ["p.yaml:2", "knid"],
        ["p.yaml:5", "models.llama.pools[1]"],
        ["p.yaml:13", "pools.short.slots"],
        ["p.yaml:14", "pools.short.slotz"],
        ["p.yaml:21", "tiers.free.slo.ttft.p99"],
        ["p.yaml:27", "keys[1].sha256"],
        ["p.yaml:29", "defaults.tier"],
    ]


def test_file_of_another_kind_gets_no_errors_about_policy_fields() -> None:
    text = SAMPLE.replace("kind: Policy", "kind: Workload").replace("slots: 8", "slotz: ${NOT_SET}")
    assert errors_of(text) == ["p.yaml:2: kind: Workload is not supported: write kind: Policy"]
    assert errors_of("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n") == [
        "p.yaml:1: apiVersion: v1 is not supported: write apiVersion: tailgate/v1",
        "p.yaml:2: kind: Pod is not supported: write kind: Policy",
    ]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "null\n"])
def test_error_for_an_empty_policy_says_how_a_policy_begins(text: str) -> None:
    assert errors_of(text) == ["p.yaml:1: is empty: write a policy that begins with apiVersion: tailgate/v1"]


def test_a_policy_file_that_is_a_list_is_an_error() -> None:
    assert errors_of("- a\n") == ["p.yaml:1: is a list, must be a mapping"]


def test_policy_file_nested_too_deeply_is_refused() -> None:
    assert errors_of("a: " + "[" * 600) == ["p.yaml:1: not valid YAML: nested too deeply"]


def test_policy_file_whose_aliases_expand_too_far_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
    assert errors_of("\n".join(lines)) == [
        "p.yaml:1: repeats more than 10000 values by aliases, such as those of line 1: repeat less",
    ]


def test_policy_file_that_merges_a_large_mapping_too_often_is_refused() -> None:
    base = "\n".join(f"  k{number}: 1" for number in range(100))
    text = f"a: &a\n{base}\nb: {{<<: [{', '.join(['*a'] * 200)}]}}\n"
    assert errors_of(text) == [
        "p.yaml:1: repeats more than 10000 values by aliases, such as those of line 1: repeat less",
    ]


def test_policy_may_repeat_a_mapping_by_aliases_in_every_tier() -> None:
    tiers = "\n".join(f"  t{number}: *all" for number in range(50))
    load_text(SAMPLE.replace("tiers:", f"tiers:\n  t: &all {{priority: 3}}\n{tiers}", 1), "p.yaml", {})


def test_policy_with_thousands_of_errors_shows_ten_and_the_number_of_the_others() -> None:
    fields = "\n".join(f"    field{number}: 1" for number in range(8000))
    with pytest.raises(PolicyErrors) as raised:
        load_text(f"tiers:\n  t:\n{fields}\n", "p.yaml", {})
    lines = str(raised.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == f"and {len(raised.value.errors) - 10} more errors"


def test_policy_error_stays_on_one_line_despite_a_name_with_a_line_break() -> None:
    text = SAMPLE.replace("  short:", '  "a\\nb":').replace("  paid:", '  "c\\nd":').replace("\n  tier: free", " {}")
    text = text.replace("    engine: vllm", '    reserve: {"c\\nd": 10%}')
    errors = errors_of(text)
    assert any("one of 'c\\nd', free" in error for error in errors)
    assert any("the tier 'c\\nd' is bound to other pools: add 'a\\nb' to its pools" in error for error in errors)
    assert not any("\n" in error for error in errors)


def test_wildcard_origin_needs_a_policy_with_keys() -> None:
    every_page = "listen: {origins: ['*']}\n"
    assert errors_of(SAMPLE + every_page) == []
    without = SAMPLE[: SAMPLE.index("keys:")] + SAMPLE[SAMPLE.index("defaults:") :]
    assert errors_of(without + every_page) == [
        "p.yaml:26: listen.origins[0]: * opens the replicas to every web page, since there are no keys: "
        "add keys, or list the pages"
    ]


def test_media_urls_without_media_is_an_error() -> None:
    text = "apiVersion: tailgate/v1\nmodels: {m: {pools: [p]}}\npools: {p: {replicas: [http://a:1]}}\ntiers:\n"
    assert errors_of(text + "  t: {caps: {media_urls: true, media: true}}\n") == []
    assert errors_of(text + "  t: {caps: {media_urls: true}}\n") == [
        "p.yaml:5: tiers.t.caps.media_urls: has no effect without media: write media: true beside it"
    ]
