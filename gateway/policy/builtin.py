"""The built-in policy of `tailgate serve --replica URL...`, for a first try."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from gateway.core.policy import AdmissionMode, Policy
from gateway.policy.document import Document
from gateway.policy.errors import PolicyError, PolicyErrors
from gateway.policy.load import load_document

MAX_BATCH = 2048
"""OpenAI's limit on the inputs of a request. LangChain sends 1,000 inputs at once."""


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
    """The built-in policy, in the form of a policy file."""
    listen = {"listen": {"origins": list(origins), "names": list(names)}} if origins or names else {}
    return {
        "apiVersion": "tailgate/v1",
        **listen,
        "models": {"*": {"pools": ["default"]}},
        "pools": {"default": {"replicas": list(replica_urls), "slots": "auto"}},
        "tiers": {
            "default": {
                "admission": {"mode": AdmissionMode.SHADOW.value},
                "caps": {"n": 8, "best_of": 8, "batch": MAX_BATCH},
            }
        },
    }


def _of_argument(error: PolicyError) -> PolicyError:
    """A copy of the error that names the option, for example number 2 for the second `--replica`."""
    found = re.search(r"(replica|origin|name)s\[(\d+)\]", error.path)
    return PolicyError(f"--{found[1]} (number {int(found[2]) + 1})" if found else "--replica", 0, "", error.message)
