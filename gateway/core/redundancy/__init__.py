"""Second attempts at a request: hedges, retries and their budgets. Quarantine forbids a third to some requests."""
