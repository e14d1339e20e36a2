"""Tests of the emulated replicas."""
