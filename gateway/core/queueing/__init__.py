"""Requests that wait, the order in which they are served, and what their tenants may use."""
