"""The load generator: sends requests to a live target when they are due, and records the answers."""
