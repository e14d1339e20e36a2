"""Second attempts at a request: hedges, retries and their budgets."""
