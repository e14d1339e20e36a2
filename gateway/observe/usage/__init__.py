"""Usage: sums of requests and tokens by hour, tenant, key, tier and model."""
