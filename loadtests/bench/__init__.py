"""The cost of the gateway, as ratios to other proxies on the same upstream in the same run."""
