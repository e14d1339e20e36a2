"""Policies of other gateways, for comparison."""
