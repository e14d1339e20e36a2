"""The decision core: synchronous, pure, deterministic."""
