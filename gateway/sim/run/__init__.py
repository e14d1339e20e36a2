"""Runs one simulation: engines, replicas, deciders."""
