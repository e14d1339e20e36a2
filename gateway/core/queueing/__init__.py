"""Queued requests, the order in which they are served, and the limits of their tenants."""
