"""Tests of what is measured and shown."""
