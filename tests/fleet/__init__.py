"""Tests of the watch over replicas."""
