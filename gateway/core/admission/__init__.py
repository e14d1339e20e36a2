"""Decides whether a request is admitted: admission, breach probability, placement, accounting, error budget."""
