"""Answers of replicas: events of a stream, whole answers, and what they say of themselves."""
