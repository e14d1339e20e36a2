"""Scenarios: what goes wrong in front of a fleet, each a file; one runner reads them all."""
