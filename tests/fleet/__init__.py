"""Tests of what is known of the replicas."""
