"""What the gateway costs, as ratios to other proxies on the same upstream in the same run."""
