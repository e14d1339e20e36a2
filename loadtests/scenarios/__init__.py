"""Scenarios: faults in a fleet, each in a file; one runner plays them all."""
