"""Decides whether a request is sent, queued or refused."""
