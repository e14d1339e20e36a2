"""Exchanges: each sends one request to replicas, and forwards one answer to the client."""
