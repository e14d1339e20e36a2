"""Answers of replicas: events of a stream, whole answers, and their usage."""
