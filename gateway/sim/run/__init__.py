"""One simulation: engine, replicas, deciders."""
