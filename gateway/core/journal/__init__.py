"""Calls of the controller as plain data, and back."""
