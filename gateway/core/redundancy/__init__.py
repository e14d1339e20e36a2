"""Second attempts: hedges, retries and their budgets."""
