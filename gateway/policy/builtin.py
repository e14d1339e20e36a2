"""The built-in policy of `tailgate serve --replica URL...`, for a first try."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Final

from gateway.core.policy import AdmissionMode, Policy
from gateway.policy.document import Document
from gateway.policy.errors import PolicyError, PolicyErrors
from gateway.policy.load import load_document

NO_CAP: Final = 2**20
"""A bound that no request reaches: no context, vocabulary or list of inputs that an engine takes is longer."""
MAX_CHOICES: Final = 16_384
"""The most that vLLM takes (VLLM_MAX_N_SEQUENCES)."""
OFF_BY_DEFAULT: Final = ("rerank", "score", "pooling", "classify", "tokenize", "detokenize")
"""APIs with paths outside /v1. Keys of an engine protect none of them, and here there are none."""
CAPS: Final = {
    "n": MAX_CHOICES,
    "best_of": MAX_CHOICES,
    "top_logprobs": NO_CAP,
    "prompt_logprobs": NO_CAP,
    "batch": NO_CAP,
    "media": True,
    "media_urls": True,
    "engine_options": True,
}


def builtin(replica_urls: Sequence[str], origins: Sequence[str] = (), names: Sequence[str] = ()) -> Policy:
    """The built-in policy: one pool with learned slots, any model name, and one tier in shadow mode. Raises
    PolicyErrors.

    `origins`, `names`: web pages and host names that may use it, as in `listen` of a policy.
    """
    data = written(replica_urls, origins, names)
    try:
        return load_document(Document("--replica", data), hashlib.sha256(json.dumps(data).encode()).hexdigest())
    except PolicyErrors as errors:
        raise PolicyErrors([_of_argument(error) for error in errors.errors]) from None


def written(replica_urls: Sequence[str], origins: Sequence[str] = (), names: Sequence[str] = ()) -> dict[str, object]:
    """The built-in policy, in the form of a policy file. It caps nothing: the engine decides what it serves. It is
    served on loopback only, to clients that could ask the engine themselves.
    """
    listen = {"listen": {"origins": list(origins), "names": list(names)}} if origins or names else {}
    return {
        "apiVersion": "tailgate/v1",
        **listen,
        "models": {"*": {"pools": ["default"]}},
        "pools": {"default": {"replicas": list(replica_urls), "slots": "auto"}},
        "tiers": {
            "default": {
                "admission": {"mode": AdmissionMode.SHADOW.value},
                "max_tokens": {"default": "none", "limit": NO_CAP},
                "caps": dict(CAPS),
                "apis": dict.fromkeys(OFF_BY_DEFAULT, True),
            }
        },
    }


def _of_argument(error: PolicyError) -> PolicyError:
    """A copy of the error that names the option, for example number 2 for the second `--replica`."""
    found = re.search(r"(replica|origin|name)s\[(\d+)\]", error.path)
    return PolicyError(f"--{found[1]} (number {int(found[2]) + 1})" if found else "--replica", 0, "", error.message)
