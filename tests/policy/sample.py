"""A valid policy that tests break in one place at a time."""

from __future__ import annotations

from gateway.policy import PolicyErrors, load_text

HASH_A = "a" * 64
HASH_B = "b" * 64

SAMPLE = f"""\
apiVersion: tailgate/v1
kind: Policy
models:
  llama:
    pools: [short, long]
    aliases: [gpt]
  mistral:
    pools: [long]
pools:
  short:
    engine: vllm
    replicas: [http://a:1, http://b:1]
    slots: 8
    router: round-robin
  long:
    replicas:
      - {{name: big, url: "http://c:1"}}
tiers:
  free:
    slo: {{ttft: {{p50: 1s, p99: 2s}}}}
    max_tokens: {{default: 10, limit: 20}}
  paid:
    pools: [long]
keys:
  - {{sha256: {HASH_A}, tenant: acme, tier: paid}}
  - {{sha256: {HASH_B}, tenant: acme}}
defaults:
  tier: free
"""


def changed(old: str, new: str) -> str:
    """The sample with one piece of it replaced."""
    assert SAMPLE.count(old) == 1, f"{old!r} stands {SAMPLE.count(old)} times in the sample"
    return SAMPLE.replace(old, new)


def errors_of(text: str, environment: dict[str, str] | None = None) -> list[str]:
    """Every error of a policy text, in its printed form."""
    try:
        load_text(text, "p.yaml", environment or {})
    except PolicyErrors as errors:
        return [str(error) for error in errors.errors]
    return []
