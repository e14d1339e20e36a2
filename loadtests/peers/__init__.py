"""Proxies that people would use instead: fetched, configured, and as command lines."""
