"""Other proxies, for comparison: downloads, configurations and command lines."""
