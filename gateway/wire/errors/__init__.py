"""Errors for clients and their reasons, in the OpenAI format. Other formats stand with their APIs, in `apis`."""
