"""Simulated engines: step times, KV caches, faults."""
