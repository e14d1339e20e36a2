"""Second attempts at a request: hedges, retries and their budgets. Quarantine forbids some requests a third attempt."""
