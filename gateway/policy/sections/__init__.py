"""Sections of a policy file, and the values in them."""
