"""Tests of metrics, state, admin port, logs and journals."""
