"""tailgate: the API front door of a fleet of LLM replicas."""
