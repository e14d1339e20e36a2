"""The policy of the bench: keys, two tiers with SLOs and limits, two pools, health checks and scraping.

Everything is switched on but never binds: limits are counted on each request and never reached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from loadtests.bench import canned

TENANTS = 100


def _keys() -> list[dict[str, str]]:
    """The bench's own key among those of other tenants."""
    others = [f"tg-other-{number}" for number in range(TENANTS - 1)]
    return [
        {
            "sha256": hashlib.sha256(key.encode()).hexdigest(),
            "tenant": f"tenant-{number}",
            "tier": "free" if number % 2 else "premium",
        }
        for number, key in enumerate([canned.KEY, *others])
    ]


def policy(ports: Sequence[int], interval_s: float, certificate: Path | None = None) -> str:
    """A policy file (JSON is YAML) for replicas on `ports` that stream one token per `interval_s`.

    At this pace even a busy machine meets the objectives, although all streams begin at once. A predicted miss is
    refused with 429, and forecasts for an engine of 2 s a token may be wrong by a factor of two. `certificate`: of
    replicas that speak TLS.
    """
    urls = [f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}" for port in ports]
    tls = {} if certificate is None else {"tls": {"ca_file": str(certificate)}}
    ttft_s, tpot_s = max(60.0, 30 * interval_s), max(5.0, 30 * interval_s)
    tiers = {
        name: {
            "priority": priority,
            "slo": {
                "ttft": {"p50": f"{ttft_s / 2:g}s", "p99": f"{ttft_s:g}s"},
                "tpot": {"p50": f"{tpot_s / 2:g}s", "p99": f"{tpot_s:g}s"},
                "e2e": {"p99": "600s", "up_to_tokens": 1000},
            },
            "max_tokens": {"default": 1000, "limit": 1_000_000},
            "limits": {"requests": "100000M/min", "tokens": "100000000M/min", "concurrency": 1_000_000},
            "timeouts": {"queue": "60s", "ttft": "120s", "idle": "60s", "total": "600s"},
            "admission": {"mode": "enforce"},
        }
        for name, priority in (("premium", 0), ("free", 2))
    }
    return json.dumps(
        {
            "apiVersion": "tailgate/v1",
            "models": {canned.MODEL: {"pools": ["short", "long"], "aliases": ["default"]}},
            "pools": {
                "short": {"engine": "vllm", "replicas": urls[:-1], "max_prompt_tokens": 16384, "slots": 4096, **tls},
                "long": {"engine": "vllm", "replicas": urls[-1:], "max_prompt_tokens": 131072, "slots": 4096, **tls},
            },
            "tiers": tiers,
            "keys": _keys(),
            "defaults": {"tier": "free"},
        },
        indent=2,
    )
