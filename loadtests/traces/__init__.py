"""A small trace of our own, and the way from one format of traces to another."""
