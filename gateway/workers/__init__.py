"""Several processes that serve one API: a supervisor, one decider, and relays."""
