"""The load generator: sends traffic to a live target when it is due, and records what comes back."""
