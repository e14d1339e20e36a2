"""The policy file of an operator."""

from gateway.policy.builtin import builtin
from gateway.policy.errors import PolicyError, PolicyErrors
from gateway.policy.exposure import exposure_error
from gateway.policy.load import load, load_text

__all__ = ["PolicyError", "PolicyErrors", "builtin", "exposure_error", "load", "load_text"]
